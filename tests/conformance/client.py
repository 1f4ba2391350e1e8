"""A device for a remote-collab hub, written from proto/ alone: python client.py HUB_URL FOLDER [JOIN_TOKEN]

It keeps one WebSocket open, makes each envelope durable in FOLDER/state.json before it acks, and reports `seen` and
`done` for it. Each step is a line of JSON on standard output.
"""
import base64, json, os, platform, random, sys, time, urllib.error, urllib.request, uuid
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect

AT_ONCE = {"token_expired", "token_used", "clock_skew"}


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def say(**event):
    print(json.dumps(event), flush=True)


class Device:
    def __init__(self, hub, folder, join):
        self.hub, self.file, self.offset = hub.rstrip("/"), os.path.join(folder, "state.json"), 0
        self.folder = os.open(folder, os.O_RDONLY)
        try:
            with open(self.file) as f:
                self.state = json.load(f)
        except FileNotFoundError:
            raw = Ed25519PrivateKey.generate().private_bytes_raw()
            self.state = {"key": raw.hex(), "instance": str(uuid.uuid4()), "last": None, "got": {}, "reports": [],
                          "outbox": {"instance": str(uuid.uuid4()), "next_n": 1}}
            self.save()  # the key is durable before the hub learns of it
        self.key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.state["key"]))
        if "device_id" not in self.state:
            self.enrol(join)

    def save(self):
        new = self.file + ".new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump(self.state, f)
            f.flush() or os.fsync(f.fileno())
        os.replace(new, self.file)
        os.fsync(self.folder)

    def enrol(self, join):
        body = {"public_key": b64(self.key.public_key().public_bytes_raw()), "name": platform.node() or "python"}
        headers = {"Authorization": f"Bearer {join}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.hub + "/enroll", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            self.state.update(json.load(answer))  # device_id, hub_id
        self.save()
        say(event="enrolled", device=self.state["device_id"])

    def jwt(self):
        now = int(time.time() + self.offset)
        claims = {"iss": self.state["device_id"], "aud": self.state["hub_id"], "jti": str(uuid.uuid4())}
        parts = {"alg": "EdDSA", "typ": "JWT"}, {**claims, "iat": now, "exp": now + 60}
        text = ".".join(b64(json.dumps(part).encode()) for part in parts)
        return f"{text}.{b64(self.key.sign(text.encode()))}"

    def forget(self, n):
        self.state["reports"] = [r for r in self.state["reports"] if r["n"] > n]
        self.save()

    def welcome(self, frame):
        outbox = self.state["outbox"]
        if frame["report_n"] >= outbox["next_n"]:  # an older copy of the outbox was put back
            outbox["next_n"] = frame["report_n"] + 1 + len(self.state["reports"])
            for n, report in enumerate(self.state["reports"], frame["report_n"] + 1):
                report["n"] = n
        if frame["resume"] == "reset":
            self.state["last"] = None
        self.epoch, self.sent = frame["epoch"], frame["report_n"]
        self.renew_at = time.monotonic() + frame["auth_expires_in_s"] * 2 / 3
        self.forget(frame["report_n"])
        say(event="welcome", resume=frame["resume"], generation=frame["generation"])

    def report(self, envelope, stage):
        now, n = int(time.time() * 1000), self.state["outbox"]["next_n"]
        self.state["reports"].append({"type": "report", "n": n, "id": envelope, "kind": "receipt", "at": now,
                                      "body": {"stage": stage, "at": now}})
        self.state["outbox"]["next_n"] = n + 1

    def deliver(self, ws, frame):
        seq, envelope, last = frame["seq"], frame["envelope"], self.state["last"]
        if last is None or seq > last["seq"]:
            if envelope["id"] not in self.state["got"]:
                known = envelope["kind"] == "message"
                self.state["got"][envelope["id"]] = envelope["body"].get("content") if known else None
                for stage in ("seen", "done") if known else ("unsupported",):
                    self.report(envelope["id"], stage)
            self.state["last"] = {"epoch": self.epoch, "seq": seq}
            self.save()
            say(event="got", id=envelope["id"], content=self.state["got"][envelope["id"]])
        ws.send(json.dumps({"type": "ack", "seq": seq}))

    def serve(self, ws):
        own = {name: self.state[name] for name in ("instance", "last", "outbox")}
        ws.send(json.dumps({"type": "hello", "build": "client.py", "os": "any", "capacity": 0, **own}))
        self.renew_at, self.sent = float("inf"), float("inf")
        while True:
            for report in [r for r in self.state["reports"][:64] if r["n"] > self.sent]:  # none before `welcome`
                ws.send(json.dumps(report))
                self.sent = report["n"]
            if time.monotonic() > self.renew_at:
                ws.send(json.dumps({"type": "auth", "token": self.jwt()}))
                self.renew_at = time.monotonic() + 600
            try:
                frame = json.loads(ws.recv(timeout=1))
            except TimeoutError:
                continue
            if (kind := frame["type"]) == "welcome":
                self.welcome(frame)
            elif kind == "deliver":
                self.deliver(ws, frame)
            elif kind == "report_ack":
                self.forget(frame["n"])
            elif kind == "reauth":
                self.renew_at = 0
            else:  # synced, error, and what a later version may send
                say(event=kind, detail=frame.get("code"))

    def run(self):
        failed = 0
        while True:
            try:
                with connect(self.hub.replace("http", "ws", 1) + "/connect", subprotocols=["remote-collab.v1"], open_timeout=10,
                             ping_interval=20, ping_timeout=25, max_size=1 << 20,
                             additional_headers={"Authorization": f"Bearer {self.jwt()}"}) as ws:
                    self.serve(ws)
            except ConnectionClosed as e:
                failed = 0
                if e.rcvd and e.rcvd.code in (4401, 4403, 4409) and e.rcvd.reason not in AT_ONCE:
                    sys.exit(e.rcvd.reason)
            except InvalidStatus as e:
                problem = json.loads(e.response.body or b"{}")
                if problem.get("code") == "clock_skew":
                    self.offset = problem["now"] / 1000 - time.time()
                elif "code" in problem and e.response.status_code < 500 and e.response.status_code != 429:
                    sys.exit(problem["title"])
            except (OSError, InvalidHandshake) as e:
                say(event="away", why=type(e).__name__)
            failed += 1
            time.sleep(random.random() * (1 if failed <= 3 else min(120, 2 ** (failed - 3))))


if __name__ == "__main__":
    Device(*sys.argv[1:3], sys.argv[3] if len(sys.argv) > 3 else None).run()

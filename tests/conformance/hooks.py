"""Who calls: the credential that each operation takes, made for each call where it holds for one call only."""
import base64, json, os, subprocess, time, urllib.request, uuid

import schemathesis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HUB = os.environ["HUB"]
OF_DEVICE = r"^/(poll|messages/(pending|ack)$)"
OPEN = r"^/(healthz|readyz|openapi.json|.well-known)"


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def owner(*args):
    command = [os.environ["HUB_PROGRAM"], "hub", *args, "--data-dir", os.environ["HUB_DATA_DIR"]]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def token(account, scope):
    """A fresh token. What enrols and revokes has an account of its own, so that in `default` one device stays."""
    return owner("token", "create", "--name", "tried", "--scope", scope, "--account", account)


class Device:
    """The one device of the account `default`."""

    def __init__(self):
        self.key = Ed25519PrivateKey.generate()
        body = {"public_key": b64(self.key.public_key().public_bytes_raw()), "name": "tried"}
        headers = {"Authorization": f"Bearer {token('default', 'devices:enroll')}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{HUB}/enroll", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            self.enrolled = json.load(answer)

    def jwt(self):
        now = int(time.time())
        claims = {"iss": self.enrolled["device_id"], "aud": self.enrolled["hub_id"], "jti": str(uuid.uuid4())}
        parts = {"alg": "EdDSA", "typ": "JWT"}, {**claims, "iat": now, "exp": now + 60}
        text = ".".join(b64(json.dumps(part).encode()) for part in parts)
        return f"{text}.{b64(self.key.sign(text.encode()))}"


device = Device()
owner("account", "create", "tried")


class Bearer:
    def set(self, case, data, context):
        case.headers = case.headers or {}
        case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.auth(refresh_interval=None, retry_on=[]).apply_to(path="/enroll")
class Join(Bearer):
    def get(self, case, context):
        return token("tried", "devices:enroll")


@schemathesis.auth(retry_on=[]).apply_to(path_regex="^/devices")
class Owner(Bearer):
    def get(self, case, context):
        return token("tried", "devices:admin")


@schemathesis.auth(refresh_interval=None, retry_on=[]).apply_to(path_regex=OF_DEVICE)
class Connect(Bearer):
    def get(self, case, context):
        return device.jwt()


@schemathesis.auth(refresh_interval=None, retry_on=[]).skip_for(
    path_regex=f"{OF_DEVICE}|{OPEN}|^/(enroll$|devices)"
)
class Token(Bearer):
    def get(self, case, context):
        return os.environ["HUB_TOKEN"]


@schemathesis.hook
def before_call(context, case, kwargs):
    """A cursor is made by the hub, for one walk: no other text is one, and no schema can say so."""
    if case.query and "cursor" in case.query and case.meta and case.meta.generation.mode.is_positive:
        del case.query["cursor"]

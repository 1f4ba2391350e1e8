//! What neither side can read: it is told by its name or its number, and nothing behind it waits.

use remote_collab::domain::{EnvelopeId, ReportKind};
use remote_collab::wire::{DeviceFrame, HubFrame};
use serde_json::{Value, json};

use crate::daemon_link::{Device, enrolled, message};
use crate::support::hub_bed::HubBed;
use crate::support::ws_client::WsClient;

/// A `deliver` whose envelope has a priority that this version does not know, and fields of a later one.
fn strange(seq: u64, id: &Value) -> String {
    let envelope =
        json!({"id": id, "kind": "message", "priority": "yesterday", "from": 7, "later": {}});
    json!({"type": "deliver", "seq": seq, "envelope": envelope}).to_string()
}

#[tokio::test]
async fn an_unreadable_envelope_is_acked_and_reported_undeliverable_and_the_next_ones_come() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut connection, _) = hub.greet().await;
    let id = EnvelopeId::from_u128(1);
    connection.send_text(strange(1, &json!(id))).await;
    connection.deliver(2, message(2)).await;
    connection.synced(2).await;
    let mut acked = 0;
    let report = loop {
        match connection.recv().await {
            DeviceFrame::Ack { seq } => acked = seq.0,
            DeviceFrame::Report(report) if report.id == id.0 => break report,
            _ => {}
        }
    };
    assert_eq!(report.kind, ReportKind::Receipt);
    assert_eq!(report.body["stage"], "undeliverable", "{report:?}");
    let reason = report.body["reason"].as_str().unwrap();
    assert!(reason.starts_with("unreadable: "), "{reason}");
    if acked < 2 {
        connection.acked(2).await;
    }
    let status = device.until(|s| s.is_synced()).await;
    assert_eq!((status.unreadable, status.malformed), (1, 0));
    assert_eq!(device.queued().await, [2]);

    // A hub that did not hear the report sends it again, and is told again after a restart of the daemon, too.
    let rejected = vec![];
    connection
        .send(HubFrame::ReportAck {
            n: report.n,
            rejected,
        })
        .await;
    device.until(|s| s.reports_in_flight == 0).await;
    device.stop().await;
    let device = Device::start(dir.path()).await;
    let (mut connection, hello) = hub.greet().await;
    assert_eq!(hello.last.unwrap().seq.0, 2);
    connection.send_text(strange(3, &json!(id))).await;
    connection.synced(3).await;
    let again = loop {
        if let DeviceFrame::Report(report) = connection.recv().await
            && report.id == id.0
        {
            break report;
        }
    };
    assert_eq!(again.body, report.body);
    device.stop().await;
}

#[tokio::test]
async fn an_envelope_without_a_readable_id_closes_the_link_with_a_cause_and_a_wait_each_time() {
    let (mut hub, dir) = enrolled().await;
    let device = Device::start(dir.path()).await;
    let (mut connection, _) = hub.greet().await;
    connection.synced(0).await;
    device.until(|s| s.is_synced()).await;
    connection.send_text(strange(1, &json!("no uuid"))).await;
    let status = device.until(|s| s.retry_at.is_some()).await;
    assert!(status.cause.unwrap().contains("without a readable id"));
    assert_eq!((status.unreadable, status.malformed), (0, 1));
    device.stop().await;
}

#[tokio::test]
async fn an_unreadable_report_is_rejected_by_its_number_and_the_next_ones_are_taken() {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    ws.send(&json!({"type": "report", "n": 1, "id": "no uuid", "kind": [], "at": "noon"}))
        .await;
    let id = uuid::Uuid::from_u128(5);
    ws.send(&json!({"type": "report", "n": 2, "id": id, "kind": "note", "at": 1, "body": "fine"}))
        .await;
    let mut rejected = Vec::new();
    loop {
        let ack = ws.expect("report_ack").await;
        rejected.extend(ack["rejected"].as_array().cloned().unwrap_or_default());
        if ack["n"] == 2 {
            break;
        }
    }
    assert_eq!(rejected, [json!({"n": 1, "code": "invalid_field"})]);
}

//! The daemon's queue as a file: read beside the program, with nothing of its code.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

/// An envelope as it stands in the queue.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) seq: i64,
    pub(crate) content: String,
}

fn open(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

/// How many envelopes there are.
pub(crate) fn count(path: &Path) -> i64 {
    let sql = "SELECT count(*) FROM envelopes";
    open(path).query_row(sql, [], |r| r.get(0)).unwrap()
}

/// Every message, in the order of arrival.
pub(crate) fn messages(path: &Path) -> Vec<Row> {
    let db = open(path);
    let sql = "SELECT id, seq, json FROM envelopes WHERE kind = 'message' ORDER BY ord";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([], |r| {
        let envelope: Value = serde_json::from_str(&r.get::<_, String>(2)?).unwrap();
        Ok(Row {
            id: r.get(0)?,
            seq: r.get(1)?,
            content: envelope["body"]["content"].as_str().unwrap().to_owned(),
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

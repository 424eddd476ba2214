//! The JSON Schema of the output of `--json`.

use crate::report::Line;

/// The schema, as in `docs/report.schema.json`.
///
/// # Errors
/// Never in practice: a schema is plain data.
pub fn text() -> serde_json::Result<String> {
    let schema = schemars::schema_for!(Line);
    serde_json::to_string_pretty(&schema).map(|text| text + "\n")
}

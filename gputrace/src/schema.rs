//! The JSON Schema of the output of `--json` and of `doctor --json`.

use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};

use crate::report::Line;

/// The schema, as in `docs/report.schema.json`: of what is written, so that members which are always
/// there are required.
///
/// # Errors
/// Never in practice: a schema is plain data.
pub fn text() -> serde_json::Result<String> {
    let schema = SchemaSettings::draft2020_12()
        .for_serialize()
        .with_transform(RecursiveTransform(plain_description))
        .into_generator()
        .into_root_schema_for::<Line>();
    serde_json::to_string_pretty(&schema).map(|text| text + "\n")
}

/// Descriptions come from comments in the source: takes out its links, and its line ends within
/// paragraphs.
fn plain_description(schema: &mut Schema) {
    if let Some(serde_json::Value::String(text)) = schema.get_mut("description") {
        let paragraphs: Vec<String> = text
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect();
        *text = paragraphs
            .join("\n\n")
            .replace("[`", "`")
            .replace("`]", "`");
    }
}

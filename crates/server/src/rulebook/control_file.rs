//! The control file, `control.json`: keeps the changes of operators over restarts. Beside it is the lineage of the document, which
//! tells nodes that share a store which of two documents is newer.

use crate::audit::ChainHead;
use crate::control::{Document, Edition, Lineage};
use crate::files;
use std::io;
use std::path::Path;

/// The contents of the control file: the control document, and the end of the audit log when it was written.
#[derive(Default)]
pub(super) struct ControlFile {
    pub(super) edition: Edition,
    pub(super) audit: Option<ChainHead>,
}

/// The file of the lineage. It is not a part of `control.json`, because older programs refuse fields that they do not know.
const LINEAGE_FILE: &str = "control-lineage";
/// The largest one. A lineage has at most 129 ids.
const MOST_LINEAGE_BYTES: u64 = 16 * 1024;

impl ControlFile {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let named = |text: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
        };
        let bytes = match files::read_regular(path, 64 * 1024 * 1024) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(named(&error)),
        };
        let parsed = |bytes: &[u8]| -> serde_json::Result<(Document, Option<ChainHead>)> {
            let mut fields: serde_json::Value = serde_json::from_slice(bytes)?;
            let audit = fields.as_object_mut().and_then(|fields| fields.remove("audit"));
            let audit = audit.map(serde_json::from_value).transpose()?;
            Ok((serde_json::from_value(fields)?, audit))
        };
        let (document, audit) = parsed(&bytes).map_err(|error| named(&error))?;
        let lineage = Lineage::read(&lineage_text(path), document.version);
        let lineage = lineage.unwrap_or_else(|| Lineage::unknown(&document));
        Ok(Self { edition: Edition { document, lineage }, audit })
    }

    /// Writes the lineage, if it has changed, and then the document. After a crash between the two, the lineage still has the ids of
    /// the document that the file has.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let lineage = self.edition.lineage.to_string();
        if lineage != lineage_text(path) {
            files::replace(&path.with_file_name(LINEAGE_FILE), lineage.as_bytes())?;
        }
        self.write_document(path)
    }

    /// Writes the document without its lineage.
    pub(super) fn write_document(&self, path: &Path) -> io::Result<()> {
        let mut fields = serde_json::to_value(&self.edition.document)?;
        if let (Some(fields), Some(audit)) = (fields.as_object_mut(), &self.audit) {
            fields.insert("audit".to_owned(), serde_json::to_value(audit)?);
        }
        files::replace(path, &serde_json::to_vec_pretty(&fields)?)
    }
}

/// The text of the lineage beside a control file. Empty if it cannot be read: then the document is one whose writer left none.
fn lineage_text(path: &Path) -> String {
    let bytes = files::read_regular(&path.with_file_name(LINEAGE_FILE), MOST_LINEAGE_BYTES);
    String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
}

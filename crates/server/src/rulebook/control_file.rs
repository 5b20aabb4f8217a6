//! The control file, `control.json`: keeps the changes of operators over restarts.

use crate::audit::ChainHead;
use crate::control::Document;
use crate::files;
use std::io;
use std::path::Path;

/// The contents of the control file: the control document, and the end of the audit log when it was written.
#[derive(Default)]
pub(super) struct ControlFile {
    pub(super) document: Document,
    pub(super) audit: Option<ChainHead>,
}

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
        let parsed = |bytes: &[u8]| -> serde_json::Result<Self> {
            let mut fields: serde_json::Value = serde_json::from_slice(bytes)?;
            let audit = fields.as_object_mut().and_then(|fields| fields.remove("audit"));
            let audit = audit.map(serde_json::from_value).transpose()?;
            Ok(Self { document: serde_json::from_value(fields)?, audit })
        };
        parsed(&bytes).map_err(|error| named(&error))
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut fields = serde_json::to_value(&self.document)?;
        if let (Some(fields), Some(audit)) = (fields.as_object_mut(), &self.audit) {
            fields.insert("audit".to_owned(), serde_json::to_value(audit)?);
        }
        files::replace(path, &serde_json::to_vec_pretty(&fields)?)
    }
}

//! The formats of logs, behind one reader.

use super::fields::{FieldUse, HOPS, IP, LineError, LoggedRequest, METHOD, PATH, WantedFields};
use super::json_lines::JsonFormat;
use super::nginx::{COMBINED, NginxFormat};
use super::recorded::RecordedFormat;
use clap::ValueEnum;

/// What a log looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FormatName {
    /// Lines of nginx, in its format `combined` or that of `--log-format`; also Apache's `combined`.
    Nginx,
    /// A JSON object on each line, as nginx, Caddy, Traefik and Envoy can write them.
    Json,
    /// What a tidegate server has recorded (`--record-file`).
    Recorded,
}

/// A format that is known in all details.
#[derive(Debug)]
pub(super) struct ReplayFormat {
    kind: FormatKind,
    /// The attributes from `FIRST_NAMED` on.
    names: Vec<String>,
    /// Fields that the log has.
    has: Vec<u16>,
}

#[derive(Debug)]
enum FormatKind {
    Nginx(NginxFormat),
    Json(JsonFormat),
    Recorded(RecordedFormat),
}

// === impl ReplayFormat ===

impl ReplayFormat {
    /// A format; that of JSON is found by the first line.
    pub(super) fn new(
        name: FormatName,
        log_format: Option<&str>,
        wanted: &mut WantedFields,
        first: &str,
    ) -> Result<Self, String> {
        if name == FormatName::Nginx {
            wanted.name("user", "remote_user", false);
        }
        let kind = match name {
            FormatName::Nginx => {
                FormatKind::Nginx(NginxFormat::new(log_format.unwrap_or(COMBINED), wanted)?)
            }
            FormatName::Json => FormatKind::Json(JsonFormat::new(first, wanted)?),
            FormatName::Recorded => FormatKind::Recorded(RecordedFormat::default()),
        };
        let names: Vec<String> = wanted.named.iter().map(|named| named.attribute.clone()).collect();
        let numbers = [IP, METHOD, PATH, HOPS]
            .into_iter()
            .chain(wanted.named.iter().filter_map(|named| wanted.number_of(&named.field)));
        let uses = |number: u16| match &kind {
            FormatKind::Nginx(format) => format.has(FieldUse::Value(number)),
            FormatKind::Json(format) => format.has(FieldUse::Value(number)),
            FormatKind::Recorded(_) => false,
        };
        let by_request_line = match &kind {
            FormatKind::Nginx(format) => format.has(FieldUse::RequestLine),
            FormatKind::Json(format) => format.has(FieldUse::RequestLine),
            FormatKind::Recorded(_) => false,
        };
        let is_line = |number: u16| by_request_line && [METHOD, PATH].contains(&number);
        let has = numbers.filter(|number| uses(*number) || is_line(*number)).collect();
        Ok(Self { kind, names, has })
    }

    pub(super) fn read<'l>(
        &mut self,
        line: &'l str,
        request: &mut LoggedRequest<'l>,
    ) -> Result<(), LineError> {
        match &mut self.kind {
            FormatKind::Nginx(format) => format.read(line, request),
            FormatKind::Json(format) => format.read(line, request),
            FormatKind::Recorded(format) => return format.read(line, request),
        }?;
        match request.stamp {
            Some(_) => Ok(()),
            None => Err(LineError("it has no time".into())),
        }
    }

    /// The names of attributes from `FIRST_NAMED` on.
    pub(super) fn names(&self) -> &[String] {
        match &self.kind {
            FormatKind::Nginx(_) | FormatKind::Json(_) => &self.names,
            FormatKind::Recorded(format) => &format.names,
        }
    }

    /// Whether requests of this log can have an attribute.
    pub(super) fn knows(&self, attribute: &str) -> bool {
        let number = match attribute {
            "ip" => Some(IP),
            "method" => Some(METHOD),
            "path" => Some(PATH),
            _ => None,
        };
        match (&self.kind, number) {
            (FormatKind::Recorded(_), Some(_)) => true,
            (FormatKind::Recorded(format), None) => {
                format.names.iter().any(|name| name == attribute)
            }
            (FormatKind::Nginx(_) | FormatKind::Json(_), Some(number)) => {
                self.has.contains(&number)
            }
            (FormatKind::Nginx(_) | FormatKind::Json(_), None) => {
                let at = self.names.iter().position(|name| name == attribute);
                let number = at
                    .and_then(|at| u16::try_from(at).ok()?.checked_add(super::fields::FIRST_NAMED));
                number.is_some_and(|number| self.has.contains(&number))
            }
        }
    }

    /// Whether requests of this log have the attribute as text, not as a digest.
    pub(super) fn shows(&self, attribute: &str) -> bool {
        let is_hashed = self.recording().is_some_and(|recording| recording.hashed);
        self.knows(attribute) && (!is_hashed || CLEAR.contains(&attribute))
    }

    /// Whether the log says how long requests took, or when they arrived.
    pub(super) fn knows_arrival(&self) -> bool {
        match &self.kind {
            FormatKind::Nginx(format) => format.has(FieldUse::Duration),
            FormatKind::Json(format) => format.has(FieldUse::Duration) || format.at_start(),
            FormatKind::Recorded(_) => true,
        }
    }

    /// What is known of a recording of tidegate.
    pub(super) const fn recording(&self) -> Option<&RecordedFormat> {
        match &self.kind {
            FormatKind::Recorded(format) => Some(format),
            FormatKind::Nginx(_) | FormatKind::Json(_) => None,
        }
    }
}

/// Attributes that a recording never hashes.
const CLEAR: [&str; 5] = ["method", "path", "tier", "priority", "domain"];

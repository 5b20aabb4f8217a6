//! The macro that declares settings. From one declaration come the field with its type, the row of the table, and the reading.
//!
//! ```text
//!   /// The HTTP listener                                        the title of the group on the page of settings
//!   http "http.": HttpGroup {                                    `settings.http`, the prefix of its names, its type
//!       /// How long a connection may be idle between requests   the help of the flag, and the meaning on the page
//!       idle_timeout: Duration = TIME("60s"),                    the name, the type, the kind of value, the default
//!   }
//! ```

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file: `http.idle_timeout`.
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    /// What a value looks like.
    pub(super) shape: &'static str,
    pub(super) help: &'static str,
}

macro_rules! settings {
    ($(
        #[doc = $title:literal]
        $group:ident $prefix:literal: $Group:ident {
            $($(#[doc = $help:literal])+ $name:ident: $type:ty = $kind:ident($default:literal),)+
        }
    )+) => {
        /// The settings of the server.
        #[derive(Debug)]
        pub(crate) struct Settings {
            $(pub(crate) $group: $Group,)+
            /// The secret, if the environment has it. Then no file is read.
            pub(crate) secret: Option<Secret>,
            /// Every setting as text, and where it comes from.
            pub(super) given: Given,
        }

        $(
            #[doc = $title]
            #[allow(clippy::doc_markdown, reason = "the texts are also the help of the flags")]
            #[derive(Debug)]
            pub(crate) struct $Group {
                $($(#[doc = $help])+ pub(crate) $name: $type,)+
            }
        )+

        /// All settings; those of a group stand together.
        pub(crate) const TABLE: &[Setting] = &[$($(Setting {
            name: concat!($prefix, stringify!($name)),
            default: $default,
            shape: kinds::$kind.shape,
            // Every line of a comment begins with a space.
            help: concat!($($help),+).trim_ascii_start(),
        },)+)+];

        /// The prefix and the title of each group.
        #[cfg(test)]
        pub(super) const GROUPS: &[(&str, &str)] = &[$(($prefix, $title.trim_ascii_start()),)+];

        impl Settings {
            /// Reads all texts, and adds those that are not valid to the problems.
            pub(super) fn read(
                given: Given,
                secret: Option<Secret>,
                problems: &mut Vec<String>,
            ) -> Option<Self> {
                let mut reader = Reader { given: &given, problems };
                $(let $group = $Group::read(&mut reader);)+
                Some(Self { $($group: $group?,)+ secret, given })
            }
        }

        $(impl $Group {
            fn read(reader: &mut Reader<'_>) -> Option<Self> {
                $(let $name = reader.read(concat!($prefix, stringify!($name)), $default, &kinds::$kind);)+
                Some(Self { $($name: $name?,)+ })
            }
        })+
    };
}

pub(super) use settings;

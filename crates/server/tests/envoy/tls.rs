//! TLS between Envoy and tidegate.

use super::mesh::{Config, Setup};
use super::stories::does;
use crate::support::authority::Authority;

/// Envoy trusts this CA, and shows this certificate if there is one.
fn under(config: Config, trusted: &str, shown: Option<[String; 2]>) -> Config {
    let file = |path: &str| format!("{{ filename: {path} }}");
    let shown = shown.map_or(String::new(), |[certificate, key]| {
        let (certificate, key) = (file(&certificate), file(&key));
        format!("tls_certificates: [{{ certificate_chain: {certificate}, private_key: {key} }}]")
    });
    let socket = format!(
        "- name: tidegate
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          sni: localhost
          common_tls_context:
            validation_context:
              trusted_ca: {}
              match_typed_subject_alt_names: [{{ san_type: DNS, matcher: {{ exact: localhost }} }}]
            {shown}
",
        file(trusted)
    );
    config.with("- name: tidegate\n", &socket)
}

/// The answers to four orders.
fn orders(
    ours: &Authority,
    trusted: &Authority,
    shown: Option<&Authority>,
    flags: &[&str],
) -> Vec<u16> {
    ours.sign("server");
    let shown = shown.map(|by| {
        by.sign("envoy");
        [by.text("envoy.pem"), by.text("envoy.key")]
    });
    let setup = Setup::by_rules()
        .flags(&["--tls-certificate", &ours.text("server.pem")])
        .flags(&["--tls-key", &ours.text("server.key"), "--tls-listeners", "grpc"])
        .flags(flags);
    let envoy = under(setup.envoy, &trusted.text("authority.pem"), shown);
    let mesh = Setup { envoy, ..setup }.start();
    mesh.statuses(4, "/shop", &does("alice", "order"))
}

const LIMITED: [u16; 4] = [200, 200, 200, 429];
const NOBODY_ANSWERS: [u16; 4] = [500; 4];

#[test]
fn envoy_asks_under_tls() {
    let (ours, stranger) = (Authority::new(), Authority::new());
    assert_eq!(orders(&ours, &ours, None, &[]), LIMITED);
    // Envoy does not trust a certificate of an unknown CA.
    assert_eq!(orders(&stranger, &ours, None, &[]), NOBODY_ANSWERS);
}

#[test]
fn envoy_shows_who_it_is_if_we_want_to_know() {
    let (ours, stranger) = (Authority::new(), Authority::new());
    let authority = ours.text("authority.pem");
    let flags = ["--tls-client-ca-file", &authority];
    assert_eq!(orders(&ours, &ours, Some(&ours), &flags), LIMITED);
    assert_eq!(orders(&ours, &ours, None, &flags), NOBODY_ANSWERS);
    assert_eq!(orders(&ours, &ours, Some(&stranger), &flags), NOBODY_ANSWERS);
}

//! Rules that change while Envoy asks.

use super::mesh::{Mesh, RULES, Setup};
use super::stories::does;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The rules, with this many orders a day.
fn rules(orders: u32) -> String {
    let (before, after) = ("value: order\n", "requests_per_unit: 3");
    let (head, rest) = RULES.split_once(before).unwrap();
    format!("{head}{before}{}", rest.replacen(after, &format!("requests_per_unit: {orders}"), 1))
}

/// Waits until an order has this limit.
fn limited_to(mesh: &Mesh, orders: u32) {
    let limit = format!("{orders}, {orders};w=86400");
    let is = |reply: &crate::support::Reply| reply.field("x-ratelimit-limit") == Some(&*limit);
    mesh.until("/shop", &does("somebody", "order"), is);
}

#[test]
fn a_file_that_is_edited_is_in_force_at_once_and_counts_go_on() {
    let mesh = Setup::by_rules().start();
    let order = does("alice", "order");
    assert_eq!(mesh.statuses(4, "/shop", &order), [200, 200, 200, 429]);
    std::fs::write(mesh.tidegate.folder.join("rules/shop.yaml"), rules(5)).unwrap();
    limited_to(&mesh, 5);
    // Three passed, and in rule files the one that was refused counts, too.
    assert_eq!(mesh.statuses(2, "/shop", &order), [200, 429]);
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_is_told() {
    let mesh = Setup::by_rules().start();
    let (path, ready) =
        (mesh.tidegate.folder.join("rules/shop.yaml"), || mesh.tidegate.get("/ready").body);
    assert!(!ready().contains("degraded"));
    let before = mesh.tidegate.metric("tidegate_reload_total{result=\"refused\"}");
    std::fs::write(&path, rules(7).replace("unit: second", "unit: fortnight")).unwrap();
    mesh.tidegate.until("it is told", |_| ready().contains("`fortnight` is not a valid unit"));
    assert!(ready().contains("degraded") && ready().contains("shop.yaml:"), "{}", ready());
    assert!(mesh.tidegate.metric("tidegate_reload_total{result=\"refused\"}") > before);
    assert_eq!(mesh.statuses(4, "/shop", &does("alice", "order")), [200, 200, 200, 429]);
    // A folder without rule files is a mistake, too.
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    mesh.tidegate.until("it is told", |_| ready().contains("no file whose name ends in .yaml"));
    assert_eq!(mesh.get("/shop", &does("alice", "order")).status, 429);

    std::fs::write(&path, rules(7)).unwrap();
    limited_to(&mesh, 7);
    mesh.tidegate.until("it is well again", |_| !ready().contains("degraded"));
}

#[test]
fn a_second_file_brings_a_second_domain() {
    let mesh = Setup::by_rules().with("domain: shop", "domain: market").start();
    let order = does("alice", "order");
    assert_eq!(mesh.statuses(5, "/shop", &order), [200; 5]);
    let market = rules(4).replace("domain: shop", "domain: market");
    std::fs::write(mesh.tidegate.folder.join("rules/market.yaml"), market).unwrap();
    limited_to(&mesh, 4);
    assert_eq!(mesh.statuses(5, "/shop", &order), [200, 200, 200, 200, 429]);
}

/// Mounted configuration: the files are links into `..data`, a link that is swapped.
#[test]
fn a_folder_that_is_swapped_is_read_again() {
    let mounted = |folder: &Path, name: &str, orders| {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("shop.yaml"), rules(orders)).unwrap();
        symlink(name, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    let folder = crate::support::folder("mounted");
    mounted(&folder, "..2026_01", 3);
    symlink("..data/shop.yaml", folder.join("shop.yaml")).unwrap();
    let setup = Setup { files: vec![], flags: vec![], ..Setup::by_rules() };
    let mesh = setup.flags(&["--envoy-config", folder.to_str().unwrap()]).start();
    assert_eq!(mesh.statuses(4, "/shop", &does("alice", "order")), [200, 200, 200, 429]);
    mounted(&folder, "..2026_02", 6);
    std::fs::remove_dir_all(folder.join("..2026_01")).unwrap();
    limited_to(&mesh, 6);
    std::fs::remove_dir_all(folder).unwrap();
}

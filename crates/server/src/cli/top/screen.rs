//! The screen of `tidegate top`: drawn again every two seconds, and after a key.

use super::figures::{Figures, TopQuestion};
use crate::cli::admin::access::AdminSession;
use crate::top_keys::TopBy;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};
use std::io;
use std::time::Duration;

/// What is on the screen.
pub(super) struct TopScreen {
    asked: TopQuestion,
    figures: Option<Figures>,
    /// Why the last question had no answer. The figures before it remain.
    error: Option<String>,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterKey {
    Quit,
    /// Other figures are shown.
    Refresh,
    Nothing,
}

const REFRESH_EVERY: Duration = Duration::from_secs(2);
const HELP: &str = " q quit   tab used, denied, would deny   r next rule ";

/// Shows the figures until the user quits.
pub(super) fn run(session: &AdminSession, asked: TopQuestion) -> io::Result<()> {
    let mut screen = TopScreen::new(asked);
    screen.refresh(Figures::fetch(session, &screen.asked));
    let mut terminal = ratatui::try_init()?;
    let shown = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        match next_key() {
            Ok(Some(key)) => match screen.key(key) {
                AfterKey::Quit => break Ok(()),
                AfterKey::Refresh => {}
                AfterKey::Nothing => continue,
            },
            Ok(None) => {}
            Err(error) => break Err(error),
        }
        screen.refresh(Figures::fetch(session, &screen.asked));
    };
    ratatui::restore();
    shown
}

/// The next key, or `None` if it is time to refresh.
fn next_key() -> io::Result<Option<KeyEvent>> {
    if !event::poll(REFRESH_EVERY)? {
        return Ok(None);
    }
    match event::read()? {
        Event::Key(key) => Ok(Some(key)),
        // Such as another size of the window: it is drawn again.
        Event::FocusGained
        | Event::FocusLost
        | Event::Mouse(_)
        | Event::Paste(_)
        | Event::Resize(..) => Ok(None),
    }
}

impl TopScreen {
    pub(super) const fn new(asked: TopQuestion) -> Self {
        Self { asked, figures: None, error: None }
    }

    /// Takes new figures, or says why there are none.
    pub(super) fn refresh(&mut self, figures: io::Result<Figures>) {
        match figures {
            Ok(new) => {
                self.figures = Some(match &self.figures {
                    Some(old) => new.since(old),
                    None => new,
                });
                self.error = None;
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> AfterKey {
        if key.kind == KeyEventKind::Release {
            return AfterKey::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if key.code == KeyCode::Char('q') || (control && key.code == KeyCode::Char('c')) {
            return AfterKey::Quit;
        }
        if key.code == KeyCode::Tab {
            self.asked.by = match self.asked.by {
                TopBy::Used => TopBy::Denied,
                TopBy::Denied => TopBy::WouldDeny,
                TopBy::WouldDeny => TopBy::Used,
            };
            return AfterKey::Refresh;
        }
        if key.code == KeyCode::Char('r') {
            self.asked.rule = self.next_rule();
            return AfterKey::Refresh;
        }
        AfterKey::Nothing
    }

    /// The rule after the one that is shown; after the last one, all rules.
    fn next_rule(&self) -> Option<String> {
        let mut names = self.figures.as_ref()?.rule_names();
        if let Some(shown) = &self.asked.rule {
            names.find(|name| name == shown);
        }
        names.next().map(str::to_owned)
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let rules = self.figures.as_ref().map_or(0, |figures| figures.rules.len());
        let nodes = self.figures.as_ref().map_or(0, |figures| figures.nodes.len());
        let lines = |rows: usize| u16::try_from(rows.saturating_add(3)).unwrap_or(u16::MAX);
        let [head, keys, rule_area, node_area, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(6),
            Constraint::Max(lines(rules).min(12)),
            Constraint::Max(lines(nodes).min(8)),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let help = Paragraph::new(HELP).dim().alignment(Alignment::Right);
        frame.render_widget(help, foot);
        self.draw_state(frame, head);
        if let Some(figures) = &self.figures {
            draw_keys(figures, self.asked.rule.as_deref(), frame, keys);
            draw_rules(figures, frame, rule_area);
            draw_nodes(figures, frame, node_area);
        }
    }

    /// The server, or what is wrong with it.
    fn draw_state(&self, frame: &mut Frame<'_>, area: Rect) {
        let figures = self.figures.as_ref();
        let problem = figures.and_then(|figures| figures.problems.first());
        let line = match (&self.error, problem, figures) {
            (Some(error), _, _) => Line::from(error.clone()).red().bold(),
            (None, Some(problem), _) => Line::from(problem.clone()).red().bold(),
            (None, None, Some(figures)) => Line::from(figures.server()),
            (None, None, None) => Line::default(),
        };
        frame.render_widget(line, area);
    }
}

fn draw_keys(figures: &Figures, rule: Option<&str>, frame: &mut Frame<'_>, area: Rect) {
    let title = match rule {
        Some(rule) => format!(" {}, rule {rule} ", figures.title()),
        None => format!(" {} ", figures.title()),
    };
    let most = figures.keys.first().map_or(0, |key| key.count);
    let row = |key: &super::figures::KeyRow| {
        let error = if key.error > 0 { format!("± {}", key.error) } else { String::new() };
        let count = key.count.to_string();
        Row::new([key.rule.clone(), key.key.clone(), count, error, bar(key.count, most)])
    };
    let widths = [
        Constraint::Max(24),
        Constraint::Fill(1),
        Constraint::Length(12),
        Constraint::Length(10),
        Constraint::Length(BAR),
    ];
    let header = Row::new(["rule", "key", "count", "", ""]).bold();
    let table = Table::new(figures.keys.iter().map(row), widths).header(header);
    frame.render_widget(table.block(Block::bordered().title(title)), area);
}

/// Columns of a bar.
const BAR: u16 = 12;

/// A bar whose length is the part of the largest count.
fn bar(count: u64, most: u64) -> String {
    let length = count.saturating_mul(u64::from(BAR)).div_ceil(most.max(1));
    "█".repeat(usize::try_from(length).unwrap_or(0))
}

fn draw_rules(figures: &Figures, frame: &mut Frame<'_>, area: Rect) {
    let row = |rule: &super::figures::RuleRow| {
        let rates = rule.rates.map(|rates| rates.map(|rate| format!("{rate}/s")));
        let [allowed, delayed, denied, would_deny] = rates.unwrap_or_default();
        Row::new([rule.rule.clone(), allowed, delayed, denied, would_deny])
    };
    let rate = Constraint::Length(12);
    let widths = [Constraint::Fill(1), rate, rate, rate, rate];
    let header = Row::new(["rule", "allow", "delay", "deny", "would deny"]).bold();
    let table = Table::new(figures.rules.iter().map(row), widths).header(header);
    frame.render_widget(table.block(Block::bordered().title(" Rules, this node ")), area);
}

fn draw_nodes(figures: &Figures, frame: &mut Frame<'_>, area: Rect) {
    let row = |node: &super::figures::NodeRow| {
        let silent = Some(node.silent_ms).filter(|silent| *silent > 0);
        let silent =
            silent.map(|silent| format!("silent for {}", crate::cli::duration::of_millis(silent)));
        Row::new([node.name.clone(), node.policy.clone(), silent.unwrap_or_default()])
    };
    let widths = [Constraint::Fill(1), Constraint::Length(16), Constraint::Length(24)];
    let header = Row::new(["node", "policy", ""]).bold();
    let table = Table::new(figures.nodes.iter().map(row), widths).header(header);
    frame.render_widget(table.block(Block::bordered().title(" Nodes ")), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};

    fn asked() -> TopQuestion {
        TopQuestion { by: TopBy::Denied, rule: None, last: 10 }
    }

    fn figures(denied: u64) -> Figures {
        let key = |user: &str, count: u64, error: u64| json!({ "key": { "user": user }, "count": count, "error": error });
        let top = json!({
            "scope": "all nodes", "nodes": 3, "by": "denied", "since_ms": 1,
            "rules": [
                { "rule": "", "keys": [{ "key": null, "count": 4, "error": 0 }], "rest": 0 },
                { "rule": "per-user", "keys": [key("alice", 12_345, 6), key("\u{1b}[2Jbob", 7, 0)], "rest": 0 },
            ],
        });
        let rule = |rule: &str, denied: u64| json!({ "rule": rule, "allowed": 100, "delayed": 0, "denied": denied, "would_deny": 2 });
        let status = json!({
            "health": { "status": "ready", "reasons": [] }, "uptime_s": 90, "tidegate": "0.1.0",
            "policy_hash": "5891b5b522d5", "memory": { "bytes": 3_145_728, "budget": 268_435_456 },
            "store_errors": 0, "rules": [rule("per-user", denied), rule("per-address", 1)],
        });
        let nodes = json!({ "count": 2, "nodes": [
            { "node": "a1", "this": true, "policy_hash": "5891b5b522d5", "silent_ms": 0 },
            { "node": "b2", "this": false, "policy_hash": "000000000000", "silent_ms": 9_000 },
        ] });
        Figures::of([top, status, nodes], TopBy::Denied)
    }

    /// The lines on a terminal of this size.
    fn drawn(screen: &TopScreen, (width, height): (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn shown() -> TopScreen {
        let mut screen = TopScreen::new(asked());
        screen.refresh(Ok(figures(10)));
        let later = figures(30).after(&figures(10), Duration::from_secs(2));
        screen.figures = Some(later);
        screen
    }

    #[test]
    fn the_screen_has_keys_rules_with_rates_and_nodes() {
        let text = drawn(&shown(), (100, 24)).join("\n");
        for part in [
            "tidegate 0.1.0, up 1 min 30 s, policy 5891b5b522d5, 3 of 256 MiB for counters",
            "Most denied, 3 nodes, the last 10 to 20 minutes",
            "user=alice",
            "12345        ± 6        ████████████",
            "(named by clients)",
            "(not shown)",
            "10/s",
            "silent for 9 s",
            "q quit",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        let first = text.find("alice").unwrap();
        assert!(first < text.find("bob").unwrap(), "the heaviest key is first");
    }

    #[test]
    fn small_and_large_terminals_are_drawn_without_a_panic() {
        for size in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            drawn(&shown(), size);
            drawn(&TopScreen::new(asked()), size);
        }
    }

    #[test]
    fn keys_quit_and_choose_what_is_shown() {
        let mut screen = shown();
        let press = |screen: &mut TopScreen, code| screen.key(KeyEvent::from(code));
        for by in [TopBy::WouldDeny, TopBy::Used, TopBy::Denied] {
            assert_eq!(press(&mut screen, KeyCode::Tab), AfterKey::Refresh);
            assert_eq!(screen.asked.by, by);
        }
        for rule in [Some("per-user"), Some("per-address"), None] {
            assert_eq!(press(&mut screen, KeyCode::Char('r')), AfterKey::Refresh);
            assert_eq!(screen.asked.rule.as_deref(), rule);
        }
        assert_eq!(press(&mut screen, KeyCode::Char('x')), AfterKey::Nothing);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), AfterKey::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(control_c), AfterKey::Quit);
    }

    #[test]
    fn an_error_is_shown_and_the_figures_before_it_remain() {
        let mut screen = shown();
        screen.refresh(Err(io::Error::other("http://127.0.0.1:8082: is it running?")));
        let text = drawn(&screen, (100, 24)).join("\n");
        assert!(text.contains("is it running?") && text.contains("user=alice"), "{text}");
    }

    #[test]
    fn a_server_that_was_restarted_has_no_rates_at_first() {
        let figures = figures(3).after(&figures(10), Duration::from_secs(2));
        assert_eq!(figures.rules[0].rates, None);
        assert_eq!(figures.rules[1].rates, Some([0; 4]));
    }

    #[test]
    fn tables_and_json_have_the_same_figures() {
        let figures = figures(10);
        let mut out = Vec::new();
        crate::cli::top::show(&figures, &mut out).unwrap();
        let text = String::from_utf8(anstream::adapter::strip_bytes(&out).into_vec()).unwrap();
        assert!(text.contains("user=alice    12345  6"), "{text}");
        assert!(text.contains("b2    000000000000  9 s") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(figures.json()["top"]["nodes"], Value::from(3));
    }
}

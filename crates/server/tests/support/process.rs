//! What the system says about a server: its memory, its open files, whether it is stopped.

use super::Server;

impl Server {
    /// Stops the process, and returns when all its threads are stopped: right after the signal a thread may still be
    /// running.
    pub(crate) fn stall(&self) {
        self.signal("STOP");
        self.until("it stands still", |server| is_stopped(server.pid()));
    }

    /// Its resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.kib("VmRSS:")
    }

    /// Its peak resident memory, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.kib("VmHWM:")
    }

    fn kib(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    /// How many files it has open; each connection is one.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Its connections over IPv4, as lines of `/proc/net/tcp`: both ends, and the state. For the message of a test that fails.
    pub(crate) fn sockets(&self) -> String {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let links = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        let links: Vec<String> = links.map(|link| link.display().to_string()).collect();
        let is_open = |line: &&str| {
            let inode = line.split_whitespace().nth(9).unwrap_or_default();
            links.contains(&format!("socket:[{inode}]"))
        };
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.pid())).unwrap();
        table.lines().filter(is_open).take(50).collect::<Vec<_>>().join("\n")
    }

    /// The value of a counter or gauge, as operators read it.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.admin("GET", "/metrics", "", "").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until this many were refused for a reason: a client may see its connection end a moment before it is
    /// counted.
    pub(crate) fn until_refused(&self, reason: &str, count: u64) {
        let name = format!("tidegate_refused_total{{reason=\"{reason}\"}}");
        self.until(&format!("{count} are refused: {reason}"), |server| {
            let refused = server.metric(&name);
            assert!(refused <= count, "{reason}: {refused}, more than {count}");
            refused == count
        });
    }

    /// How many connections and requests were refused before they were evaluated, for any reason.
    pub(crate) fn refused(&self) -> u64 {
        let text = self.admin("GET", "/metrics", "", "").body;
        let lines = text.lines().filter(|line| line.starts_with("tidegate_refused_total{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Panics if the server ever had an internal error.
    pub(crate) fn is_sound(&self) {
        assert_eq!(self.metric("tidegate_panics_total"), 0);
        let log = self.log();
        assert!(!log.contains("panicked"), "{log}");
        assert_eq!(self.get("/live").status, 200);
    }
}

/// Whether all threads of a process are stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(Result::unwrap).all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.contains("\nState:\tT")
    })
}

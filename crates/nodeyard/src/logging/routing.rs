//! Routes entries to handlers by logger name, like Python's logging.
//!
//! Logger names are hierarchical, with dots. An entry is written if it reaches the level of its logger, or of the
//! nearest ancestor with a level. It goes to the handlers of its logger and its ancestors, up to one that does not
//! propagate.

use std::collections::BTreeMap;

use tracing_subscriber::filter::LevelFilter;

use super::entry::LogEntry;
use super::format::LogFormat;
use super::sink::Sink;
use super::{filter, rank};

#[derive(Debug, Default)]
pub(super) struct LogRouting {
    /// By name; the root logger's name is empty.
    pub(super) loggers: BTreeMap<String, Logger>,
    pub(super) handlers: Vec<LogHandler>,
}

#[derive(Debug, Clone)]
pub(super) struct Logger {
    /// Python's number of the level.
    pub(super) level: Option<u32>,
    /// Indices into [`LogRouting::handlers`].
    pub(super) handlers: Vec<usize>,
    pub(super) propagate: bool,
}

#[derive(Debug)]
pub(super) struct LogHandler {
    pub(super) level: u32,
    pub(super) form: LogFormat,
    pub(super) sink: Sink,
}

/// The default level of Python's root logger.
const ROOT_LEVEL: u32 = 30;

impl LogRouting {
    /// Writes everything to one sink.
    pub(super) fn simple(form: LogFormat, sink: Sink) -> Self {
        let root = Logger {
            level: Some(0),
            handlers: vec![0],
            propagate: true,
        };
        Self {
            loggers: BTreeMap::from([(String::new(), root)]),
            handlers: vec![LogHandler {
                level: 0,
                form,
                sink,
            }],
        }
    }

    /// Removes the levels, because they are configured elsewhere.
    pub(super) fn without_levels(mut self) -> Self {
        for logger in self.loggers.values_mut() {
            logger.level = Some(0);
        }
        self
    }

    /// Returns the lowest level that is written anywhere.
    pub(super) fn lowest(&self) -> LevelFilter {
        let levels = self.loggers.values().filter_map(|logger| logger.level);
        filter(levels.min().unwrap_or(ROOT_LEVEL))
    }

    pub(super) fn write(&self, entry: &LogEntry) {
        let rank = rank(entry.level);
        for index in self.handlers_of(&entry.logger, rank) {
            if let Some(handler) = self.handlers.get(index)
                && rank >= handler.level
            {
                handler.sink.write(&handler.form.render(entry));
            }
        }
    }

    fn handlers_of(&self, name: &str, rank: u32) -> Vec<usize> {
        let mut indices = Vec::new();
        let mut level = None;
        let mut open = true;
        for name in ancestors(name) {
            let Some(logger) = self.loggers.get(name) else {
                continue;
            };
            level = level.or(logger.level);
            if open {
                indices.extend(&logger.handlers);
                open = logger.propagate;
            }
        }
        if rank < level.unwrap_or(ROOT_LEVEL) {
            indices.clear();
        }
        indices
    }
}

/// Returns `a.b.c`, `a.b`, `a` and the root.
fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    let mut next = Some(name);
    std::iter::from_fn(move || {
        let this = next?;
        next = match this {
            "" => None,
            _ => Some(this.rsplit_once('.').map_or("", |(above, _)| above)),
        };
        Some(this)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logger(level: Option<u32>, handlers: &[usize], propagate: bool) -> Logger {
        Logger {
            level,
            handlers: handlers.to_vec(),
            propagate,
        }
    }

    #[test]
    fn levels_are_inherited_and_handlers_add_up() {
        let plan = LogRouting {
            loggers: BTreeMap::from([
                (String::new(), logger(Some(30), &[0], true)),
                ("nodepool".to_owned(), logger(Some(10), &[1], true)),
                ("nodepool.zk".to_owned(), logger(Some(20), &[2], false)),
            ]),
            handlers: Vec::new(),
        };
        assert_eq!(plan.handlers_of("nodepool.NodePool", 10), [1, 0]);
        assert_eq!(plan.handlers_of("nodepool.zk.ZooKeeper", 20), [2]);
        assert!(plan.handlers_of("nodepool.zk", 10).is_empty());
        assert!(plan.handlers_of("hyper.proto", 20).is_empty());
        assert_eq!(plan.handlers_of("nodepools", 30), [0]);
        assert_eq!(plan.lowest(), LevelFilter::DEBUG);
    }
}

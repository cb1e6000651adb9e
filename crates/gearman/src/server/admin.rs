//! The admin protocol: text commands that operators and `gearadmin` send on the same port.
//!
//! Characters of names that would end a column or a line are escaped. In columns that end with a tab a name keeps its
//! blanks, so that it can be used as a function name.

use super::rights::AccessList;
use super::scheduler::{ConnectionId, Scheduler};

const END: &str = ".\n";

impl Scheduler {
    /// Executes an admin command and queues its response.
    pub(super) fn handle_admin_command(
        &mut self,
        from: ConnectionId,
        line: &str,
        access: Option<&AccessList>,
    ) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let answer = match words.as_slice() {
            [] => return,
            ["status"] => self.list_status(),
            ["prioritystatus"] => self.list_priorities(),
            ["workers"] => self.list_workers(),
            ["show", "jobs"] => self.list_jobs(),
            ["show", "unique", "jobs"] => self.list_uniques(),
            ["cancel", "job", handle] => self.cancel_job(from, handle),
            ["version"] => format!("OK {}\n", env!("CARGO_PKG_VERSION")),
            ["getpid"] => format!("OK {}\n", std::process::id()),
            ["maxqueue", function, limits @ ..] => self.set_max_queue(from, function, limits),
            ["create", "function", function] => self.create_function(from, function),
            ["drop", "function", function] => self.remove_function(from, function),
            ["acl", "list"] => match access {
                Some(access) => access.to_text() + END,
                None => "ERR ACL_DISABLED\n".to_owned(),
            },
            ["acl", ..] if access.is_none() => "ERR ACL_DISABLED\n".to_owned(),
            ["acl", ..] => {
                "ERR UNABLE rights+are+set+in+the+configuration+of+this+server\n".to_owned()
            }
            ["shutdown", ..] => {
                "ERR PERMISSION_DENIED stop+the+process+of+this+server\n".to_owned()
            }
            _ => "ERR UNKNOWN_COMMAND\n".to_owned(),
        };
        self.text(from, answer);
    }

    fn list_status(&self) -> String {
        let line = |function: &super::scheduler::FunctionEntry| {
            let total = function.queue.len() + function.running;
            let (running, workers) = (function.running, function.workers.len());
            let name = escape_phrase(&function.name);
            format!("{name}\t{total}\t{running}\t{workers}\n")
        };
        self.functions().map(line).chain([END.to_owned()]).collect()
    }

    fn list_priorities(&self) -> String {
        let line = |function: &super::scheduler::FunctionEntry| {
            let [high, normal, low] = function.waiting;
            format!(
                "{}\t{high}\t{normal}\t{low}\t{}\n",
                escape_phrase(&function.name),
                function.workers.len()
            )
        };
        self.functions().map(line).chain([END.to_owned()]).collect()
    }

    fn list_workers(&self) -> String {
        let mut connections: Vec<_> = self.connections.iter().collect();
        connections.sort_unstable_by_key(|(id, _)| **id);
        let mut answer = String::new();
        for (id, connection) in connections {
            let (address, client_id) = (connection.address, escape_phrase(&connection.client_id));
            answer.push_str(&format!("{} {address} {client_id} :", id.0));
            for function in connection
                .functions
                .iter()
                .filter_map(|id| self.function(*id))
            {
                answer.push(' ');
                answer.push_str(&escape_word(&function.name));
            }
            answer.push('\n');
        }
        answer + END
    }

    /// Lists jobs with handle, failed attempts, whether the job is to be discarded, and whether it is waiting.
    fn list_jobs(&self) -> String {
        let mut jobs: Vec<_> = self.jobs.iter().collect();
        jobs.sort_unstable_by_key(|(id, _)| **id);
        let line = |(_, job): (_, &super::scheduler::JobEntry)| {
            let waits = u8::from(job.worker.is_none());
            let retries = job.attempts.saturating_sub(u32::from(job.worker.is_some()));
            format!("{}\t{retries}\t0\t{waits}\n", escape_word(&job.handle))
        };
        jobs.into_iter().map(line).chain([END.to_owned()]).collect()
    }

    fn list_uniques(&self) -> String {
        let mut jobs: Vec<_> = self.jobs.iter().collect();
        jobs.sort_unstable_by_key(|(id, _)| **id);
        let line = |(_, job): (_, &super::scheduler::JobEntry)| escape_word(&job.unique) + "\n";
        jobs.into_iter().map(line).chain([END.to_owned()]).collect()
    }

    fn cancel_job(&mut self, from: ConnectionId, handle: &str) -> String {
        let job = self.job_by_handle(handle.as_bytes());
        let function = job
            .and_then(|id| self.jobs.get(&id))
            .and_then(|job| self.function(job.function));
        let (Some(id), Some(function)) = (job, function) else {
            return "ERR UNKNOWN_JOB\n".to_owned();
        };
        if !self.may_invoke(from, &function.name) {
            return "ERR PERMISSION_DENIED\n".to_owned();
        }
        if self.cancel(id) {
            "OK\n".to_owned()
        } else {
            "ERR UNKNOWN_JOB\n".to_owned()
        }
    }

    /// Sets one limit for all priorities, or one each for high, normal and low; values below one remove the limit.
    fn set_max_queue(&mut self, from: ConnectionId, function: &str, limits: &[&str]) -> String {
        if !self.may_operate(from) {
            return "ERR PERMISSION_DENIED\n".to_owned();
        }
        let parsed: Result<Vec<i64>, _> = limits.iter().map(|limit| limit.parse()).collect();
        let limit = |value: i64| usize::try_from(value).ok().filter(|value| *value > 0);
        let limits = match parsed.as_deref() {
            Ok([]) => [None; 3],
            Ok([all]) => [limit(*all); 3],
            Ok([high, normal, low]) => [limit(*high), limit(*normal), limit(*low)],
            _ => {
                return "ERR INCOMPLETE_ARGS maxqueue+takes+a+function+and+one+or+three+numbers\n"
                    .to_owned();
            }
        };
        let id = self.find_or_add_function(function.as_bytes());
        match id.and_then(|id| self.function_mut(id)) {
            Some(function) => {
                function.max_waiting = limits;
                "OK\n".to_owned()
            }
            None => "ERR TOO_MANY_FUNCTIONS\n".to_owned(),
        }
    }

    fn create_function(&mut self, from: ConnectionId, function: &str) -> String {
        if !self.may_operate(from) {
            return "ERR PERMISSION_DENIED\n".to_owned();
        }
        match self.find_or_add_function(function.as_bytes()) {
            Some(_) => "OK\n".to_owned(),
            None => "ERR TOO_MANY_FUNCTIONS\n".to_owned(),
        }
    }

    fn remove_function(&mut self, from: ConnectionId, function: &str) -> String {
        if !self.may_operate(from) {
            return "ERR PERMISSION_DENIED\n".to_owned();
        }
        match self.function_named(function.as_bytes()) {
            None => "ERR function not found\n".to_owned(),
            Some(id) if self.drop_function(id) => "OK\n".to_owned(),
            Some(_) => "ERR there are still jobs or workers for this function\n".to_owned(),
        }
    }
}

/// Escapes whitespace, control characters and invalid UTF-8, for columns that end with a blank.
fn escape_word(name: &[u8]) -> String {
    escape(name, |character| {
        character.is_whitespace() || character.is_control()
    })
}

/// Escapes control characters and invalid UTF-8, for columns that end with a tab and for client ids, which readers
/// delimit by the colon after them.
fn escape_phrase(name: &[u8]) -> String {
    escape(name, char::is_control)
}

fn escape(name: &[u8], must_escape: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if must_escape(character) {
                text.extend(character.escape_unicode());
            } else {
                text.push(character);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

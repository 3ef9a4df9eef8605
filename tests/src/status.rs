//! The output of `forebay status --json`, as far as the tests use it.

use serde_json::Value;
use std::process::Output;

#[derive(Clone, Debug)]
pub struct Status(pub Value);

impl Status {
    /// Parses the command's output. Fails the test if the command failed.
    pub fn parse(out: &Output) -> Self {
        assert!(
            out.status.success(),
            "forebay status: {}\n{}",
            out.status,
            crate::test_mount::text(out)
        );
        let text = String::from_utf8_lossy(&out.stdout);
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("forebay status --json is not JSON ({e}):\n{text}"));
        Self(value)
    }

    /// Returns a number by its path, for example `/store/capacity`.
    pub fn number(&self, pointer: &str) -> u64 {
        self.at(pointer)
            .as_u64()
            .unwrap_or_else(|| panic!("{pointer} is not a number in {:#}", self.0))
    }

    pub fn at(&self, pointer: &str) -> &Value {
        self.0
            .pointer(pointer)
            .unwrap_or_else(|| panic!("{pointer} is missing in {:#}", self.0))
    }

    pub fn pid(&self) -> u64 {
        self.number("/pid")
    }

    /// Bytes in the log or in subfiles that the canonical files do not have.
    pub fn undrained(&self) -> u64 {
        self.number("/bytes/undrained")
    }

    /// Paths of the files with undrained data, each with its undrained bytes.
    pub fn files(&self) -> Vec<(String, u64)> {
        let list = self.at("/files").as_array().expect("/files is a list");
        list.iter()
            .map(|file| {
                let name = file["path"].as_str().unwrap_or_default().to_owned();
                (name, file["undrained"].as_u64().unwrap_or_default())
            })
            .collect()
    }

    /// Bytes that are only in the log: the rest of the undrained bytes is in subfiles.
    pub fn in_log(&self) -> u64 {
        self.number("/bytes/in_log")
    }

    fn targets(&self) -> &[Value] {
        let list = self.at("/targets/osts").as_array();
        list.expect("/targets/osts is a list")
    }

    /// Returns a storage target by its number.
    pub fn target(&self, index: usize) -> &Value {
        let found = self.targets().iter().find(|ost| ost["index"] == index);
        found.unwrap_or_else(|| panic!("there is no target {index} in {:#}", self.0))
    }

    /// Numbers of the targets that data goes to, sorted.
    pub fn chosen(&self) -> Vec<usize> {
        let chosen = self.targets().iter().filter(|ost| ost["state"] == "chosen");
        let number = |ost: &Value| ost["index"].as_u64().expect("a number") as usize;
        let mut numbers: Vec<usize> = chosen.map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the message that `errors` has for this file.
    pub fn error_of(&self, path: &str) -> Option<String> {
        let errors = self.errors();
        let of_it = errors.iter().find(|error| error["path"] == path)?;
        of_it["message"].as_str().map(str::to_owned)
    }

    /// Returns the sticky errors.
    pub fn errors(&self) -> Vec<Value> {
        let list = self.at("/errors").as_array().expect("/errors is a list");
        list.clone()
    }
}

//! An allocator that is given on the command line: its name, its library, variables of its programs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// `NAME=LIBRARY`, or `NAME=LIBRARY,VARIABLE=VALUE` with as many variables as there are.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its column.
    pub name: String,
    /// What is preloaded.
    pub library: PathBuf,
    /// What its programs find in their environment, and those of other columns do not.
    pub environment: BTreeMap<String, String>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let mut parts = text.split(',');
        let first = parts.next().and_then(|first| first.split_once('='));
        let first = first.filter(|(name, library)| !name.is_empty() && !library.is_empty());
        let (name, library) =
            first.ok_or("expected NAME=LIBRARY or NAME=LIBRARY,VARIABLE=VALUE")?;
        let mut environment = BTreeMap::new();
        for part in parts {
            let (variable, value) = variable(part)?;
            if environment.insert(variable.to_owned(), value.to_owned()).is_some() {
                return Err(format!("{variable} has two values"));
            }
        }
        Ok(Named { name: name.to_owned(), library: library.into(), environment })
    }
}

fn variable(part: &str) -> Result<(&str, &str), String> {
    let is_variable = |name: &str| {
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        name.chars().all(of_name) && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let parts = part.split_once('=').filter(|(name, _)| !name.is_empty() && is_variable(name));
    let parts = parts.ok_or_else(|| {
        format!("`{part}` is no VARIABLE=VALUE; neither a path nor a value can have a comma")
    })?;
    match parts.0 {
        "LD_PRELOAD" => Err("LD_PRELOAD is how the lab brings the allocators in".to_owned()),
        _ => Ok(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::Named;

    #[test]
    fn variables_follow_the_library() {
        let named = |text: &str| text.parse::<Named>().unwrap();
        let plain = named("old=lib/a=b.so");
        assert_eq!((&*plain.name, plain.library.to_str()), ("old", Some("lib/a=b.so")));
        assert!(plain.environment.is_empty());
        let set = named("set=lib.so,CAIRN_PROFILE=/tmp/%p,B_2=,C=x=y");
        assert_eq!(set.library.to_str(), Some("lib.so"));
        let variables: Vec<_> = set.environment.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(variables, [("B_2", ""), ("C", "x=y"), ("CAIRN_PROFILE", "/tmp/%p")]);
    }

    #[test]
    fn what_cannot_be_read_is_told_once() {
        for (text, said) in [
            ("", "expected NAME=LIBRARY"),
            ("name", "expected NAME=LIBRARY"),
            ("=lib.so", "expected NAME=LIBRARY"),
            ("name=,A=1", "expected NAME=LIBRARY"),
            ("a=lib.so,", "`` is no VARIABLE=VALUE"),
            ("a=lib.so,A", "`A` is no VARIABLE=VALUE"),
            ("a=lib.so,=1", "`=1` is no VARIABLE=VALUE"),
            ("a=lib.so,2A=1", "`2A=1` is no VARIABLE=VALUE"),
            ("a=lib.so,A B=1", "`A B=1` is no VARIABLE=VALUE"),
            ("a=lib.so,A=1,2", "`2` is no VARIABLE=VALUE"),
            ("a=lib.so,A=1,A=1", "A has two values"),
            ("a=lib.so,LD_PRELOAD=x", "LD_PRELOAD is how"),
        ] {
            let error = text.parse::<Named>().unwrap_err();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}

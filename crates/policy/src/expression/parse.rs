//! From text to nodes: words first, then the grammar, one function for each of its lines.

use super::{Compare, ExpressionError, Name, Node, Number, Part};
use crate::address::parse_network;
use crate::attributes::shown;
use crate::identity::Identity;
use crate::path::NormalPath;

/// More than any condition a person would write on one line.
const LONGEST: usize = 2 * 1024;
/// Brackets and `not`s within each other.
const DEEPEST: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Name(String),
    Text(String),
    Number(Number),
    Sign(&'static str),
}

/// A value of a comparison.
enum Value {
    Name(String),
    Text(String),
    Number(Number),
}

/// The longer signs first, so that `<=` is not read as `<` and `=`.
const SIGNS: [&str; 12] = ["==", "!=", "<=", ">=", "<", ">", "(", ")", "[", "]", ",", "."];
/// What other languages write.
const STRANGE: [(&str, &str); 6] =
    [("&&", "and"), ("||", "or"), ("=>", ">="), ("=<", "<="), ("!", "not"), ("=", "==")];

pub(super) fn parse(text: &str, identity: &Identity) -> Result<Node, ExpressionError> {
    if text.len() > LONGEST {
        return Err(error(0, format!("an expression has at most {LONGEST} bytes")));
    }
    let words = words(text)?;
    let end = text.chars().count();
    let mut parser = Parser { words: words.into_iter().peekable(), end, depth: 0, identity };
    let root = parser.any()?;
    match parser.words.next() {
        None => Ok(root),
        Some((at, word)) => Err(error(at, format!("{} here; write `and` or `or`", word.shown()))),
    }
}

fn error(at: usize, text: impl Into<String>) -> ExpressionError {
    ExpressionError { at, text: text.into() }
}

// === words ===

fn words(text: &str) -> Result<Vec<(usize, Word)>, ExpressionError> {
    let chars: Vec<char> = text.chars().collect();
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(rest) = chars.get(at..).filter(|rest| !rest.is_empty()) {
        let (length, word) = word(at, rest)?;
        words.extend(word.map(|word| (at, word)));
        at = at.saturating_add(length);
    }
    Ok(words)
}

/// The first word and how many characters it takes; blanks are no word.
fn word(at: usize, rest: &[char]) -> Result<(usize, Option<Word>), ExpressionError> {
    let Some(first) = rest.first() else { return Ok((1, None)) };
    let run = |belongs: fn(&char) -> bool| rest.iter().take_while(|c| belongs(c)).count();
    let text = |length: usize| rest.iter().take(length).collect::<String>();
    if first.is_whitespace() {
        return Ok((1, None));
    }
    if *first == '"' || *first == '\'' {
        return quoted(at, rest, *first);
    }
    if first.is_ascii_digit() || *first == '-' {
        let length = run(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
        let number = text(length).parse();
        let number = number.map_err(|_| {
            error(at, format!("`{}` is no number; write it like `0.7`", text(length)))
        })?;
        return Ok((length, Some(Word::Number(number))));
    }
    if first.is_ascii_alphabetic() || *first == '_' {
        let length = run(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        return Ok((length, Some(Word::Name(text(length)))));
    }
    let starts = |sign: &str| rest.iter().copied().take(sign.len()).eq(sign.chars());
    if let Some(sign) = SIGNS.iter().find(|sign| starts(sign)) {
        return Ok((sign.len(), Some(Word::Sign(sign))));
    }
    match STRANGE.iter().find(|(sign, _)| starts(sign)) {
        Some((sign, meant)) => Err(error(at, format!("write `{meant}` instead of `{sign}`"))),
        None => Err(error(at, format!("`{}` has no meaning here", shown(&text(1))))),
    }
}

/// A text between quotes; a backslash takes the next character as it is.
fn quoted(at: usize, rest: &[char], quote: char) -> Result<(usize, Option<Word>), ExpressionError> {
    let mut text = String::new();
    let mut inside = rest.iter().enumerate().skip(1);
    while let Some((position, c)) = inside.next() {
        if *c == quote {
            return Ok((position.saturating_add(1), Some(Word::Text(text))));
        }
        let taken = if *c == '\\' { inside.next().map(|(_, escaped)| escaped) } else { Some(c) };
        text.extend(taken);
    }
    Err(error(at, format!("a text that does not end; close it with `{quote}`")))
}

impl Word {
    fn shown(&self) -> String {
        match self {
            Self::Name(name) => format!("`{}`", shown(name)),
            Self::Text(text) => format!("\"{}\"", shown(text)),
            Self::Number(number) => format!("`{number}`"),
            Self::Sign(sign) => format!("`{sign}`"),
        }
    }
}

// === grammar ===

struct Parser<'i> {
    words: std::iter::Peekable<std::vec::IntoIter<(usize, Word)>>,
    /// How many characters there are: where something is missing.
    end: usize,
    depth: usize,
    /// Which attributes are known by their digests.
    identity: &'i Identity,
}

impl Parser<'_> {
    fn any(&mut self) -> Result<Node, ExpressionError> {
        let mut nodes = vec![self.all()?];
        while self.takes_name("or") {
            nodes.push(self.all()?);
        }
        Ok(one_or(nodes, Node::Any))
    }

    fn all(&mut self) -> Result<Node, ExpressionError> {
        let mut nodes = vec![self.not()?];
        while self.takes_name("and") {
            nodes.push(self.not()?);
        }
        Ok(one_or(nodes, Node::All))
    }

    fn not(&mut self) -> Result<Node, ExpressionError> {
        if self.depth >= DEEPEST {
            return Err(error(self.at(), format!("nested deeper than {DEEPEST}")));
        }
        self.depth = self.depth.saturating_add(1);
        let node = if self.takes_name("not") {
            Node::Not(Box::new(self.not()?))
        } else if self.takes_sign("(") {
            let node = self.any()?;
            self.expect(")")?;
            node
        } else if self.takes_name("true") {
            Node::Always(true)
        } else if self.takes_name("false") {
            Node::Always(false)
        } else {
            self.test()?
        };
        self.depth = self.depth.saturating_sub(1);
        Ok(node)
    }

    fn test(&mut self) -> Result<Node, ExpressionError> {
        let at = self.at();
        let left = self.value()?;
        if let Value::Name(name) = &left {
            if self.takes_sign(".") {
                return self.part(name);
            }
            if self.takes_name("in") {
                return self.within(name);
            }
            // `user not in […]`: somebody, and none of these.
            if self.takes_name("not") {
                let in_at = self.at();
                if !self.takes_name("in") {
                    return Err(error(in_at, "`in` is missing"));
                }
                let known = Node::Known(name.as_str().into());
                return Ok(Node::All(vec![known, negated(self.within(name)?)]));
            }
        }
        let sign_at = self.at();
        let sign = match self.words.next() {
            Some((_, Word::Sign(sign @ ("==" | "!=" | "<" | "<=" | ">" | ">=")))) => sign,
            Some((_, word)) => {
                let text = format!("{} here; write a comparison such as `==`", word.shown());
                return Err(error(sign_at, text));
            }
            None => return Err(error(sign_at, "a comparison is missing, such as `==`")),
        };
        let right = self.value()?;
        self.compare(at, sign_at, left, sign, right)
    }

    fn value(&mut self) -> Result<Value, ExpressionError> {
        match self.words.next() {
            Some((at, Word::Name(name)))
                if ["and", "or", "not", "in", "true", "false", "null"].contains(&name.as_str()) =>
            {
                Err(error(at, format!("`{name}` here; write a name, a number or a text")))
            }
            Some((_, Word::Name(name))) => Ok(Value::Name(name)),
            Some((_, Word::Text(text))) => Ok(Value::Text(text)),
            Some((_, Word::Number(number))) => Ok(Value::Number(number)),
            Some((at, word @ Word::Sign(_))) => {
                let text = format!("{} here; write a name, a number or a text", word.shown());
                Err(error(at, text))
            }
            None => Err(error(self.end, "something is missing at the end")),
        }
    }

    /// Behind `name.`.
    fn part(&mut self, name: &str) -> Result<Node, ExpressionError> {
        let at = self.at();
        let method = match self.words.next() {
            Some((_, Word::Name(method))) => method,
            Some((_, Word::Text(_) | Word::Number(_) | Word::Sign(_))) | None => String::new(),
        };
        let part = match method.as_str() {
            "starts_with" => Part::Start,
            "ends_with" => Part::End,
            "contains" => Part::Anywhere,
            other => {
                let text = "; there are `starts_with`, `ends_with` and `contains`";
                return Err(error(at, format!("`{}` is no test of a text{text}", shown(other))));
            }
        };
        if name == "cost" {
            return Err(error(at, "`cost` is a number; compare it with `<`, `==` and the like"));
        }
        if self.identity.digests(name) {
            return Err(error(at, by_digest(name)));
        }
        self.expect("(")?;
        let at = self.at();
        let Value::Text(text) = self.value()? else {
            return Err(error(at, "write a text between quotes here"));
        };
        self.expect(")")?;
        Ok(Node::Part(name.into(), part, text))
    }

    /// Behind `name in`.
    fn within(&mut self, name: &str) -> Result<Node, ExpressionError> {
        self.expect("[")?;
        let mut nodes = Vec::new();
        loop {
            let value_at = self.at();
            let value = match self.value()? {
                Value::Name(_) => return Err(error(value_at, "write a number or a text here")),
                value @ (Value::Text(_) | Value::Number(_)) => value,
            };
            let name = Value::Name(name.to_owned());
            nodes.push(self.compare(value_at, value_at, name, "==", value)?);
            if !self.takes_sign(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(one_or(nodes, Node::Any))
    }

    /// A comparison as a node; what can never be true is refused here.
    fn compare(
        &self,
        at: usize,
        sign_at: usize,
        left: Value,
        sign: &str,
        right: Value,
    ) -> Result<Node, ExpressionError> {
        let order = match sign {
            "<" => Compare::Less,
            "<=" => Compare::LessOrEqual,
            ">" => Compare::Greater,
            ">=" => Compare::GreaterOrEqual,
            _ => Compare::Equal,
        };
        let ordered = order != Compare::Equal;
        let (known, node) = match (left, right) {
            (Value::Name(name), Value::Number(_)) | (Value::Number(_), Value::Name(name))
                if ["ip", "path", "method"].contains(&name.as_str()) =>
            {
                return Err(error(
                    sign_at,
                    format!("`{name}` is no number; write a text between quotes"),
                ));
            }
            (Value::Name(name), Value::Number(_)) | (Value::Number(_), Value::Name(name))
                if self.identity.digests(&name) =>
            {
                return Err(error(at, by_digest(&name)));
            }
            (Value::Name(name), Value::Number(number)) => {
                (name.clone(), size(&name, order, number))
            }
            (Value::Number(number), Value::Name(name)) => {
                (name.clone(), size(&name, order.turned(), number))
            }
            (Value::Name(_), Value::Name(_) | Value::Text(_))
            | (Value::Text(_), Value::Name(_))
                if ordered =>
            {
                return Err(error(sign_at, format!("`{sign}` compares with a number")));
            }
            (Value::Name(name), Value::Text(text)) | (Value::Text(text), Value::Name(name)) => {
                (name.clone(), self.equal(at, &name, text)?)
            }
            (Value::Name(left), Value::Name(right)) => {
                let node = Node::Same(left.clone().into(), right.clone().into());
                if sign != "!=" {
                    return Ok(node);
                }
                let known = [left, right].map(|name| Node::Known(name.into()));
                return Ok(Node::All(known.into_iter().chain([negated(node)]).collect()));
            }
            (Value::Text(_) | Value::Number(_), Value::Text(_) | Value::Number(_)) => {
                return Err(error(at, "a comparison needs a name, such as `cost` or `user`"));
            }
        };
        // `!=` on something absent is false too, and so says that it is there.
        Ok(match sign {
            "!=" => Node::All(vec![Node::Known(known.into()), negated(node)]),
            _ => node,
        })
    }

    /// A name equals a text: as the attribute of that name is spelled.
    fn equal(&self, at: usize, name: &str, text: String) -> Result<Node, ExpressionError> {
        self.identity.may_name(name, &text).map_err(|why| error(at, why))?;
        let owned: Name = name.into();
        Ok(match name {
            "cost" => return Err(error(at, "`cost` is a number; write it without quotes")),
            "ip" => {
                let network = parse_network(&text).map_err(|text| error(at, text))?;
                Node::Within(owned, vec![network])
            }
            "path" if text.contains(['?', '#']) => {
                return Err(error(at, "a path is compared without its query"));
            }
            "method" if !text.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                return Err(error(at, format!("`{}` is no method", shown(&text))));
            }
            "path" => match NormalPath::new(&text) {
                Ok(path) => Node::Text(owned, vec![path.as_str().to_owned()]),
                Err(cause) => return Err(error(at, format!("`{}`: {cause}", shown(&text)))),
            },
            "method" => Node::Text(owned, vec![text.to_ascii_uppercase()]),
            _ => Node::Text(owned, vec![text]),
        })
    }

    fn at(&mut self) -> usize {
        self.words.peek().map_or(self.end, |(at, _)| *at)
    }

    fn takes_name(&mut self, name: &str) -> bool {
        self.words.next_if(|(_, word)| matches!(word, Word::Name(found) if found == name)).is_some()
    }

    fn takes_sign(&mut self, sign: &str) -> bool {
        self.words.next_if(|(_, word)| matches!(word, Word::Sign(s) if *s == sign)).is_some()
    }

    fn expect(&mut self, sign: &str) -> Result<(), ExpressionError> {
        let at = self.at();
        if self.takes_sign(sign) { Ok(()) } else { Err(error(at, format!("`{sign}` is missing"))) }
    }
}

fn one_or(mut nodes: Vec<Node>, several: fn(Vec<Node>) -> Node) -> Node {
    match (nodes.pop(), nodes.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            nodes.extend(last);
            several(nodes)
        }
    }
}

/// Why neither a part of an attribute nor its size can be compared.
fn by_digest(name: &str) -> String {
    let what = if name == "api_key" { "an API key" } else { &format!("`{}`", shown(name)) };
    format!("{what} is known by its digest; compare it whole, with `==`")
}

fn negated(node: Node) -> Node {
    Node::Not(Box::new(node))
}

fn size(name: &str, order: Compare, number: Number) -> Node {
    Node::Size(name.into(), order, number)
}

#[cfg(test)]
mod tests {
    use super::super::Expression;

    #[test]
    fn mistakes_are_named_where_they_are() {
        for (text, expected) in [
            ("", "at character 1: something is missing at the end"),
            ("cost", "at character 5: a comparison is missing"),
            ("cost <", "at character 7: something is missing at the end"),
            ("cost = 3", "at character 6: write `==` instead of `=`"),
            ("a == 1 && b == 2", "at character 8: write `and` instead of `&&`"),
            ("a == 1 || b == 2", "at character 8: write `or` instead of `||`"),
            ("!a == 1", "at character 1: write `not` instead of `!`"),
            ("a == \"x", "at character 6: a text that does not end"),
            ("a == 1e3", "at character 6: `1e3` is no number"),
            ("a == 1.2.3", "`1.2.3` is no number"),
            ("a < \"x\"", "at character 3: `<` compares with a number"),
            ("a < b", "at character 3: `<` compares with a number"),
            ("1 < 2", "at character 1: a comparison needs a name"),
            ("cost == \"x\"", "`cost` is a number"),
            ("cost.contains(\"1\")", "`cost` is a number"),
            ("api_key.contains(\"1\")", "known by its digest"),
            ("api_key == \"s3cr3t\"", "known by its digest"),
            ("ip == \"here\"", "`here` is no network"),
            ("ip == 5", "`ip` is no number"),
            ("cost => 5", "at character 6: write `>=` instead of `=>`"),
            ("user not on [1]", "at character 10: `in` is missing"),
            ("a == null", "`null` here"),
            ("ip in [\"10.0.0.1/8\"]", "at character 8: `10.0.0.1/8` names a host"),
            ("ip in [\"10.0.0.0/33\"]", "`10.0.0.0/33` is no network"),
            ("path == \"x\"", "a path begins with a slash"),
            ("user.begins(\"x\")", "at character 6: `begins` is no test of a text"),
            ("user.starts_with(x)", "at character 18: write a text between quotes"),
            ("user.starts_with(\"x\"", "at character 21: `)` is missing"),
            ("user in \"x\"", "at character 9: `[` is missing"),
            ("user in [\"x\"", "at character 13: `]` is missing"),
            ("user in []", "at character 10: `]` here"),
            ("user in [x]", "at character 10: write a number or a text here"),
            ("(a == 1", "at character 8: `)` is missing"),
            ("a == 1)", "at character 7: `)` here; write `and` or `or`"),
            ("a == 1 b == 2", "at character 8: `b` here; write `and` or `or`"),
            ("and == 1", "at character 1: `and` here"),
            ("a @ 1", "at character 3: `@` has no meaning here"),
        ] {
            let error = Expression::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// Nothing a file can say makes the parser deep or slow.
    #[test]
    fn size_and_depth_are_bounded() {
        let deep = format!("{}a == 1{}", "(".repeat(1_000), ")".repeat(1_000));
        assert!(Expression::parse(&deep).unwrap_err().to_string().contains("nested deeper"));
        let nots = format!("{}a == 1", "not ".repeat(400));
        assert!(Expression::parse(&nots).unwrap_err().to_string().contains("nested deeper"));
        let fine = format!("{}a == 1{}", "(".repeat(15), ")".repeat(15));
        assert!(Expression::parse(&fine).is_ok());
        let long = "a == 1 or ".repeat(1_000);
        assert!(Expression::parse(&long).unwrap_err().to_string().contains("at most 2048 bytes"));
        let chain = format!("{}a == 1", "a == 1 and ".repeat(180));
        assert!(Expression::parse(&chain).is_ok());
    }
}

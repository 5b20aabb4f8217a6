//! Parses conditions: from text to words, then by the grammar in `model/expression.rs`, with one function for each of its
//! lines (recursive descent).

use crate::document::shown;
use crate::model::address::parse_network;
use crate::model::expression::{Comparison, Expression, ExpressionError, Name, Node, TextTest};
use crate::model::identity::Identity;
use crate::model::number::Number;
use crate::model::path::NormalPath;

/// More than any condition that a person would write on one line.
const LONGEST: usize = 2 * 1024;
/// How deeply brackets and `not` may be nested.
const DEEPEST: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Name(String),
    Text(String),
    Number(Number),
    Sign(&'static str),
}

/// One side of a comparison.
enum Operand {
    Name(String),
    Text(String),
    Number(Number),
}

/// A comparison operator, and its position.
#[derive(Clone, Copy)]
struct Operator {
    at: usize,
    sign: &'static str,
}

/// Longer signs come first, so that `<=` is not read as `<` and `=`.
const SIGNS: [&str; 12] = ["==", "!=", "<=", ">=", "<", ">", "(", ")", "[", "]", ",", "."];
/// Signs of other languages, and what to write instead.
const FOREIGN_SIGNS: [(&str, &str); 6] =
    [("&&", "and"), ("||", "or"), ("=>", ">="), ("=<", "<="), ("!", "not"), ("=", "==")];
const RESERVED: [&str; 7] = ["and", "or", "not", "in", "true", "false", "null"];

impl Expression {
    /// Parses an expression.
    ///
    /// ```
    /// use tidegate_policy::Expression;
    /// assert!(Expression::parse("load < 0.7").is_ok());
    /// assert!(Expression::parse("load <").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        Self::parse_for(text, &Identity::default())
    }

    /// Parses an expression about the requests of a policy. An attribute that `identity` stores as a digest never equals
    /// its plain value, so comparing it with that is refused.
    pub(crate) fn parse_for(text: &str, identity: &Identity) -> Result<Self, ExpressionError> {
        Ok(Self { root: parse(text, identity)?, text: text.to_owned() })
    }
}

fn parse(text: &str, identity: &Identity) -> Result<Node, ExpressionError> {
    if text.len() > LONGEST {
        return Err(error(0, format!("an expression has at most {LONGEST} bytes")));
    }
    let words = words(text)?;
    let end = text.chars().count();
    let mut parser = Parser { words: words.into_iter().peekable(), end, depth: 0, identity };
    let root = parser.any()?;
    match parser.words.next() {
        None => Ok(root),
        Some((at, word)) => {
            Err(error(at, format!("unexpected {}; write `and` or `or`", word.shown())))
        }
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

/// The first word, and its length in characters. A blank is skipped as `None`.
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
        return number(at, &text(length)).map(|number| (length, Some(number)));
    }
    if first.is_ascii_alphabetic() || *first == '_' {
        let length = run(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        return Ok((length, Some(Word::Name(text(length)))));
    }
    sign(at, rest)
}

fn number(at: usize, text: &str) -> Result<Word, ExpressionError> {
    let refused = |_| error(at, format!("`{text}` is not a valid number; write it like `0.7`"));
    text.parse().map(Word::Number).map_err(refused)
}

/// A sign such as `<=`, and its length.
fn sign(at: usize, rest: &[char]) -> Result<(usize, Option<Word>), ExpressionError> {
    let starts = |sign: &str| rest.iter().copied().take(sign.len()).eq(sign.chars());
    if let Some(sign) = SIGNS.iter().find(|sign| starts(sign)) {
        return Ok((sign.len(), Some(Word::Sign(sign))));
    }
    let first: String = rest.iter().take(1).collect();
    Err(match FOREIGN_SIGNS.iter().find(|(sign, _)| starts(sign)) {
        Some((sign, meant)) => error(at, format!("write `{meant}` instead of `{sign}`")),
        None => error(at, format!("unexpected character `{}`", shown(&first))),
    })
}

/// A text in quotes. After a backslash, the next character is taken literally.
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
    Err(error(at, format!("this text does not end; close it with `{quote}`")))
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
    /// The length of the text in characters: the position of something that is missing at the end.
    end: usize,
    depth: usize,
    /// Knows which attributes are stored as digests.
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
            return Err(error(self.at(), format!("nested deeper than {DEEPEST} levels")));
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
        let left = self.operand()?;
        if let Operand::Name(name) = &left {
            if self.takes_sign(".") {
                return self.text_test(name);
            }
            if self.takes_name("in") {
                return self.within(name);
            }
            if self.takes_name("not") {
                return self.not_in(name);
            }
        }
        let operator = self.operator()?;
        let right = self.operand()?;
        self.compare(at, left, operator, right)
    }

    fn operand(&mut self) -> Result<Operand, ExpressionError> {
        match self.words.next() {
            Some((at, Word::Name(name))) if RESERVED.contains(&name.as_str()) => {
                Err(error(at, format!("unexpected `{name}`; write a name, a number or a text")))
            }
            Some((_, Word::Name(name))) => Ok(Operand::Name(name)),
            Some((_, Word::Text(text))) => Ok(Operand::Text(text)),
            Some((_, Word::Number(number))) => Ok(Operand::Number(number)),
            Some((at, word @ Word::Sign(_))) => {
                let word = word.shown();
                Err(error(at, format!("unexpected {word}; write a name, a number or a text")))
            }
            None => Err(error(self.end, "a value is missing at the end")),
        }
    }

    fn operator(&mut self) -> Result<Operator, ExpressionError> {
        let at = self.at();
        match self.words.next() {
            Some((_, Word::Sign(sign @ ("==" | "!=" | "<" | "<=" | ">" | ">=")))) => {
                Ok(Operator { at, sign })
            }
            Some((_, word)) => {
                let text = format!("unexpected {}; write a comparison such as `==`", word.shown());
                Err(error(at, text))
            }
            None => Err(error(at, "a comparison is missing, such as `==`")),
        }
    }

    /// After `name.`: `starts_with("…")` and the like.
    fn text_test(&mut self, name: &str) -> Result<Node, ExpressionError> {
        let at = self.at();
        let method = match self.words.next() {
            Some((_, Word::Name(method))) => method,
            Some((_, Word::Text(_) | Word::Number(_) | Word::Sign(_))) | None => String::new(),
        };
        let test = match method.as_str() {
            "starts_with" => TextTest::StartsWith,
            "ends_with" => TextTest::EndsWith,
            "contains" => TextTest::Contains,
            other => {
                let tests = "`starts_with`, `ends_with` or `contains`";
                let text = format!("`{}` is not a test of a text; write {tests}", shown(other));
                return Err(error(at, text));
            }
        };
        if name == "cost" {
            return Err(error(at, "`cost` is a number; compare it with `<`, `==` and the like"));
        }
        if self.identity.digests(name) {
            return Err(error(at, stored_as_digest(name)));
        }
        self.expect("(")?;
        let at = self.at();
        let Operand::Text(text) = self.operand()? else {
            return Err(error(at, "write a text in quotes here"));
        };
        self.expect(")")?;
        Ok(Node::TextTest(name.into(), test, text))
    }

    /// After `name in`.
    fn within(&mut self, name: &str) -> Result<Node, ExpressionError> {
        self.expect("[")?;
        let mut nodes = Vec::new();
        loop {
            let at = self.at();
            let value = match self.operand()? {
                Operand::Name(_) => return Err(error(at, "write a number or a text here")),
                value @ (Operand::Text(_) | Operand::Number(_)) => value,
            };
            let name = Operand::Name(name.to_owned());
            nodes.push(self.compare(at, name, Operator { at, sign: "==" }, value)?);
            if !self.takes_sign(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(one_or(nodes, Node::Any))
    }

    /// After `name not`: the attribute is present, and its value is not in the list.
    fn not_in(&mut self, name: &str) -> Result<Node, ExpressionError> {
        let at = self.at();
        if !self.takes_name("in") {
            return Err(error(at, "`in` is missing"));
        }
        Ok(but_not([name], self.within(name)?))
    }

    /// A comparison as a node. A comparison that could never be true is refused.
    fn compare(
        &self,
        at: usize,
        left: Operand,
        operator: Operator,
        right: Operand,
    ) -> Result<Node, ExpressionError> {
        let (name, node) = match (left, right) {
            (Operand::Name(name), Operand::Number(number)) => {
                let node = self.compare_number(at, &name, operator, operator.order(), number)?;
                (name, node)
            }
            (Operand::Number(number), Operand::Name(name)) => {
                let order = operator.order().turned();
                let node = self.compare_number(at, &name, operator, order, number)?;
                (name, node)
            }
            (Operand::Name(_), Operand::Name(_) | Operand::Text(_))
            | (Operand::Text(_), Operand::Name(_))
                if operator.order() != Comparison::Equal =>
            {
                let text = format!("`{}` needs a number to compare with", operator.sign);
                return Err(error(operator.at, text));
            }
            (Operand::Name(name), Operand::Text(text))
            | (Operand::Text(text), Operand::Name(name)) => {
                let node = self.equal(at, &name, text)?;
                (name, node)
            }
            (Operand::Name(left), Operand::Name(right)) => {
                return Ok(same(&left, &right, operator));
            }
            (Operand::Text(_) | Operand::Number(_), Operand::Text(_) | Operand::Number(_)) => {
                return Err(error(at, "a comparison needs a name, such as `cost` or `user`"));
            }
        };
        Ok(if operator.sign == "!=" { but_not([name.as_str()], node) } else { node })
    }

    fn compare_number(
        &self,
        at: usize,
        name: &str,
        operator: Operator,
        order: Comparison,
        number: Number,
    ) -> Result<Node, ExpressionError> {
        if ["ip", "path", "method"].contains(&name) {
            let text = format!("`{name}` is not a number; write a text in quotes");
            return Err(error(operator.at, text));
        }
        if self.identity.digests(name) {
            return Err(error(at, stored_as_digest(name)));
        }
        Ok(Node::Size(name.into(), order, number))
    }

    /// Compares a name with a text, which is first brought into the form that the attribute has.
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
                return Err(error(at, "a path is compared without its query; remove it"));
            }
            "method" if !text.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                return Err(error(at, format!("`{}` is not a valid method", shown(&text))));
            }
            "path" => match NormalPath::new(&text) {
                Ok(path) => Node::Text(owned, vec![path.as_str().to_owned()]),
                Err(cause) => return Err(error(at, format!("`{}`: {cause}", shown(&text)))),
            },
            "method" => Node::Text(owned, vec![text.to_ascii_uppercase()]),
            _ => Node::Text(owned, vec![text]),
        })
    }

    /// The position of the next word.
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

impl Operator {
    /// The comparison; `!=` is the negation of `Equal`.
    fn order(self) -> Comparison {
        match self.sign {
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            _ => Comparison::Equal,
        }
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

/// `left == right` or `left != right`.
fn same(left: &str, right: &str, operator: Operator) -> Node {
    let node = Node::Same(left.into(), right.into());
    if operator.sign == "!=" { but_not([left, right], node) } else { node }
}

/// The negation of a test, which also requires that these attributes are present: a test of an absent attribute is false,
/// negated or not.
fn but_not<const N: usize>(names: [&str; N], node: Node) -> Node {
    let known = names.map(|name| Node::Known(name.into()));
    Node::All(known.into_iter().chain([Node::Not(Box::new(node))]).collect())
}

/// Why an attribute can be compared only as a whole.
fn stored_as_digest(name: &str) -> String {
    let what = if name == "api_key" { "an API key" } else { &format!("`{}`", shown(name)) };
    format!("{what} is stored as a digest; compare it with `==` only")
}

#[cfg(test)]
mod tests {
    use crate::Expression;

    #[test]
    fn mistakes_are_reported_at_their_position() {
        for (text, expected) in [
            ("", "at character 1: a value is missing at the end"),
            ("cost", "at character 5: a comparison is missing"),
            ("cost <", "at character 7: a value is missing at the end"),
            ("cost = 3", "at character 6: write `==` instead of `=`"),
            ("a == 1 && b == 2", "at character 8: write `and` instead of `&&`"),
            ("a == 1 || b == 2", "at character 8: write `or` instead of `||`"),
            ("!a == 1", "at character 1: write `not` instead of `!`"),
            ("a == \"x", "at character 6: this text does not end"),
            ("a == 1e3", "at character 6: `1e3` is not a valid number"),
            ("a == 1.2.3", "`1.2.3` is not a valid number"),
            ("a < \"x\"", "at character 3: `<` needs a number"),
            ("a < b", "at character 3: `<` needs a number"),
            ("1 < 2", "at character 1: a comparison needs a name"),
            ("cost == \"x\"", "`cost` is a number"),
            ("cost.contains(\"1\")", "`cost` is a number"),
            ("api_key.contains(\"1\")", "stored as a digest"),
            ("api_key == \"s3cr3t\"", "stored as a digest"),
            ("ip == \"here\"", "`here` is not a valid network"),
            ("ip == 5", "`ip` is not a number"),
            ("cost => 5", "at character 6: write `>=` instead of `=>`"),
            ("user not on [1]", "at character 10: `in` is missing"),
            ("a == null", "unexpected `null`"),
            ("ip in [\"10.0.0.1/8\"]", "at character 8: `10.0.0.1/8` has host bits set"),
            ("ip in [\"10.0.0.0/33\"]", "`10.0.0.0/33` is not a valid network"),
            ("path == \"x\"", "a path begins with a slash"),
            ("user.begins(\"x\")", "at character 6: `begins` is not a test of a text"),
            ("user.starts_with(x)", "at character 18: write a text in quotes"),
            ("user.starts_with(\"x\"", "at character 21: `)` is missing"),
            ("user in \"x\"", "at character 9: `[` is missing"),
            ("user in [\"x\"", "at character 13: `]` is missing"),
            ("user in []", "at character 10: unexpected `]`"),
            ("user in [x]", "at character 10: write a number or a text here"),
            ("(a == 1", "at character 8: `)` is missing"),
            ("a == 1)", "at character 7: unexpected `)`; write `and` or `or`"),
            ("a == 1 b == 2", "at character 8: unexpected `b`; write `and` or `or`"),
            ("and == 1", "at character 1: unexpected `and`"),
            ("a @ 1", "at character 3: unexpected character `@`"),
        ] {
            let error = Expression::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// No file can make the parser recurse deeply or run for long.
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

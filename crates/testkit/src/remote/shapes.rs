//! What clients were recorded to send, as a table that a request is held against.

/// One line of the table.
struct Shape<'a> {
    method: &'a str,
    path: Vec<&'a str>,
    query: Vec<&'a str>,
    body: Vec<&'a str>,
}

fn lines(table: &str) -> impl Iterator<Item = Shape<'_>> {
    table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (head, rest) = line.split_once(" ?")?;
        let (query, body) = rest.split_once(" :")?;
        let (method, path) = head.split_once(' ')?;
        Some(Shape {
            method,
            path: path.split('/').collect(),
            query: query.split_whitespace().collect(),
            body: body.split_whitespace().collect(),
        })
    })
}

/// What is wrong with a request, if anything: its path, a key of its query, or a key of its body is in no record.
pub fn wrong(table: &str, method: &str, path: &str, query: &[String], body: &[String]) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    let matches = |shape: &Shape<'_>| {
        shape.method == method
            && shape.path.len() == parts.len()
            && shape.path.iter().zip(&parts).all(|(known, part)| known == part || known.starts_with('{'))
    };
    // A fixed name comes before a place that any name fills.
    let found = lines(table)
        .filter(matches)
        .min_by_key(|shape| shape.path.iter().filter(|p| p.starts_with('{')).count());
    let Some(shape) = found else { return Some(format!("{method} {path} is in no record")) };
    let unknown =
        |keys: &[String], known: &[&str]| keys.iter().find(|key| !known.contains(&key.as_str())).cloned();
    if let Some(key) = unknown(query, &shape.query) {
        return Some(format!("{method} {path}: `{key}` in the query is in no record"));
    }
    let key = unknown(body, &shape.body)?;
    Some(format!("{method} {path}: `{key}` in the body is in no record"))
}

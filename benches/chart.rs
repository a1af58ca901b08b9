//! Draws docs/bench.svg from the figures of `make bench`: `chart FIGURES.json` writes the drawing to its
//! standard output.

use serde_json::Value;

fn main() {
    // Cargo adds --bench.
    let file = std::env::args()
        .skip(1)
        .find(|word| !word.starts_with("--"));
    let file = file.expect("the file with the figures");
    let text = std::fs::read_to_string(&file).expect("it can be read");
    print!("{}", svg(&serde_json::from_str(&text).expect("it is JSON")));
}

const WIDTH: usize = 760;
const LEFT: usize = 226;
const TOP: usize = 78;
const ROW: usize = 22;
/// As wide as a ratio of 1 to INCR.
const ONE: f64 = 460.0;

const STYLE: &str = "\
  <style>
    .paper { fill: #ffffff; }
    .ink { fill: #1f2328; }
    .soft { fill: #59636e; }
    .ours { fill: #1a7f37; }
    .theirs { fill: #afb8c1; }
    .one { stroke: #8c959f; stroke-dasharray: 4 4; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      .ink { fill: #e6edf3; }
      .soft { fill: #9198a1; }
      .ours { fill: #3fb950; }
      .theirs { fill: #57606a; }
      .one { stroke: #656c76; }
    }
    text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; }
    .title { font-weight: 600; font-size: 15px; }
  </style>
";

/// The first table as bars: the throughput of each, where INCR is 1.
pub fn svg(figures: &Value) -> String {
    let table = &figures["tables"][0];
    let rows: Vec<(&str, f64)> = table["rows"]
        .as_array()
        .expect("a table")
        .iter()
        .map(|row| {
            (
                row["name"].as_str().expect("a name"),
                row["of_incr"].as_f64().expect("a ratio"),
            )
        })
        // It would be longer than the drawing is wide, and nobody limits with it.
        .filter(|(name, _)| *name != "PING")
        .collect();
    let height = TOP + rows.len() * ROW + 16;
    let one = LEFT + ONE as usize;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n  <title>Throughput next to INCR</title>\n{STYLE}  \
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n  \
         <text class=\"ink title\" x=\"16\" y=\"26\">Throughput next to INCR, which is 1</text>\n  \
         <text class=\"soft\" x=\"16\" y=\"48\">{}: {}, median of {} rounds</text>\n  \
         <line class=\"one\" x1=\"{one}\" y1=\"{}\" x2=\"{one}\" y2=\"{}\"/>\n",
        figures["server"].as_str().expect("a server"),
        table["name"].as_str().expect("a name").to_lowercase(),
        table["rounds"],
        TOP - 10,
        height - 14,
    );
    for (n, (name, ratio)) in rows.iter().enumerate() {
        let y = TOP + n * ROW;
        let whose = if name.starts_with("RL.") {
            "ours"
        } else {
            "theirs"
        };
        let width = (ratio * ONE).round();
        let end = LEFT as f64 + width + 8.0;
        svg += &format!(
            "  <text class=\"ink\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\n  \
             <rect class=\"{whose}\" x=\"{LEFT}\" y=\"{}\" width=\"{width}\" height=\"14\"/>\n  \
             <text class=\"soft\" x=\"{end}\" y=\"{}\">{ratio:.2}</text>\n",
            LEFT - 10,
            y + 6,
            y - 5,
            y + 6,
        );
    }
    svg + "</svg>\n"
}

// SPDX-License-Identifier: Apache-2.0
#include "admin/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "admin/output.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/size.h"

namespace monarch::admin {
namespace {

constexpr double kWidth = 440, kHeight = 200, kLeft = 64, kRight = 12, kTop = 12, kBottom = 28;

// Nothing is loaded and nothing is run, even if a text got past in_markup().
constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root { --paper: #ffffff; --ink: #1b1f24; --faint: #5c6670; --rule: #d8dee4; --card: #f5f7f9;
  --pfs: #b3400a; --tiers: #0b6bb8; --peers: #6f42c1; --good: #1a7f37; --doubtful: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181c; --ink: #e6e9ec; --faint: #9aa5b1; --rule: #343c44; --card: #1d2329;
    --pfs: #ff9a5c; --tiers: #63b3ff; --peers: #c3a4ff; --good: #4ac26b; --doubtful: #e3b341; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 2rem; }
main > :not(section), section[id^=opens], #nodes { grid-column: 1 / -1; }
h1 { font-size: 1.4rem; margin: 0.5rem 0 0; } .about { margin: 0 0 1rem; color: var(--faint); } h2 { font-size: 1.1rem; margin: 2rem 0 0.25rem; }
.advice { margin: 0; border-left: 0.3rem solid var(--doubtful); background: var(--card); padding: 0.6rem 0.8rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: 0.6rem; margin: 1rem 0; }
dl div { background: var(--card); padding: 0.6rem 0.8rem; }
dt, dd + dd { color: var(--faint); font-size: 0.85rem; } dd { margin: 0; }
dt + dd { font-size: 1.6rem; font-weight: 600; line-height: 1.3; }
svg { display: block; width: 100%; height: auto; }
.bars { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0.5rem 2rem; }
svg text { fill: var(--faint); font-size: 13px; }
@media (min-width: 40rem) { svg text { font-size: 9px; } }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.quota { fill: none; stroke-width: 1.5; stroke-dasharray: 5 4; vector-effect: non-scaling-stroke; }
.c0 { stroke: var(--pfs); color: var(--pfs); } .c1 { stroke: var(--tiers); color: var(--tiers); }
.c2 { stroke: var(--peers); color: var(--peers); } .c3 { stroke: var(--good); color: var(--good); }
.c4 { stroke: var(--doubtful); color: var(--doubtful); }
.area { fill: currentColor; fill-opacity: 0.15; stroke: none; } .bar { fill: currentColor; stroke: none; }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1.2rem; padding: 0; margin: 0.2rem 0; font-size: 0.9rem; }
li::before { content: ""; display: inline-block; width: 1em; height: 0.25em; margin-right: 0.4em; background: currentColor;
  vertical-align: middle; }
li span { color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: right; padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
/* A line for each node becomes a column. */
@media (max-width: 40rem) {
  #nodes tbody { display: flex; } #nodes tr { display: flex; flex: 1; flex-direction: column; }
  #nodes th { text-align: left; } #nodes td { text-align: right; } #nodes th:empty::before { content: "\a0"; }
}
.note, summary { color: var(--faint); font-size: 0.9rem; } summary { cursor: pointer; margin-top: 0.5rem; }
footer { color: var(--faint); font-size: 0.85rem; margin-top: 2rem; }
</style>
)";

struct Curve {
  std::string name, kind;                             // in the legend, if any; CSS class of its colour
  std::function<std::optional<double>(uint64_t)> at;  // of a sample
  enum class Looks { kLine, kArea, kDashes } looks = Looks::kLine;
};
struct Chart {
  std::string id, heading, description;
  std::vector<Curve> curves;
  double top = 0;  // of the axis
  std::function<std::string(double)> label;
  uint64_t end_ms = 0;  // of the other axis
};

double x_of(const Chart& chart, uint64_t ms) {
  const auto end = static_cast<double>(std::max<uint64_t>(chart.end_ms, 1));
  return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(ms) / end;
}

double y_of(const Chart& chart, double value) {
  const double part = chart.top > 0 ? std::clamp(value / chart.top, 0.0, 1.0) : 0;
  return kHeight - kBottom - (kHeight - kTop - kBottom) * part;
}

std::string line_of(const Chart& chart, const Curve& curve, const Timeline& t) {
  std::string points;
  double first = kLeft, last = kLeft;
  for (uint64_t i = 0; i < t.series.count; ++i) {
    const std::optional<double> value = curve.at(i);
    if (!value) continue;
    last = x_of(chart, t.at(i).ms);
    if (points.empty()) first = last;
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", last, y_of(chart, *value));
  }
  if (points.empty()) return "";
  std::string area;
  if (curve.looks == Curve::Looks::kArea)
    area = fmt::format("<polygon class=\"area {0}\" points=\"{1:.1f},{2:.1f} {3} {4:.1f},{2:.1f}\"/>\n",
                       curve.kind, first, kHeight - kBottom, points, last);
  return area + fmt::format("<polyline class=\"{} {}\" points=\"{}\"/>\n",
                            curve.looks == Curve::Looks::kDashes ? "quota" : "line", curve.kind, points);
}

// A time on an axis of so many milliseconds.
std::string when(uint64_t ms, uint64_t of) {
  constexpr uint64_t kShort = 10000;
  return of >= kShort ? time_text(ms / 1000) : fmt::format("{:.2f} s", static_cast<double>(ms) / 1000);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", anchor, x, y,
                     in_markup(text));
}

std::string grid_at(double y, const std::string& label) {
  return fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
                     kWidth - kRight, y, y) +
         text_at(kLeft - 6, y + 4, "end", label);
}

std::string legend_of(const std::string& kind, const std::string& name) {
  return fmt::format("<li class=\"{}\"><span>{}</span></li>", kind, in_markup(name));
}

std::string svg_of(double height, const std::string& description, const std::string& drawn) {
  return fmt::format("<svg viewBox=\"0 0 {:.1f} {:.1f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>", kWidth,
                     height, in_markup(description), drawn);
}

std::string axes_of(const Chart& chart) {
  std::string drawn;
  for (int i = 0; i <= 4; ++i) {
    const double value = chart.top * i / 4;
    drawn += grid_at(y_of(chart, value), chart.label(value));
  }
  for (const auto& [i, anchor] : {std::pair(0u, "start"), {2u, "middle"}, {4u, "end"}})
    drawn += text_at(kLeft + (kWidth - kLeft - kRight) * i / 4, kHeight - 8, anchor,
                     when(chart.end_ms * i / 4, chart.end_ms));
  return drawn;
}

std::string chart_of(const Chart& chart, const Timeline& t) {
  std::string legend, drawn = axes_of(chart);
  for (const Curve& c : chart.curves) {
    if (!c.name.empty()) legend += legend_of(c.kind, c.name);
    drawn += line_of(chart, c, t);
  }
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<ul>{}</ul>\n{}\n</section>\n", chart.id,
                     in_markup(chart.heading), legend, svg_of(kHeight, chart.description, drawn));
}

// Of the first sample, that up to the second.
Rates drawn_at(const Timeline& t, uint64_t i) { return rates_at(t, std::max<uint64_t>(i, 1)); }

// So that the axis has round labels.
double round_up(double value) {
  double unit = 1;
  while (unit * 1000 < value) unit *= 1024;
  for (const double step : {1.0, 2.0, 4.0, 8.0, 20.0, 40.0, 80.0, 200.0, 400.0, 800.0, 1024.0})
    if (step * unit >= value) return step * unit;
  return value;
}

std::string size_label(double value) { return format_size(static_cast<uint64_t>(std::llround(value))); }

std::string rate_label(double value) { return size_label(value) + "/s"; }

Chart from_pfs(const Timeline& t) {
  const double most = peaks_of(t).pfs;
  return {"pfs",
          "Read from the PFS per second",
          "Bytes read from the PFS per second over time, at most " + size_label(most),
          {{"by programs and for copies, at most " + rate_label(most), "c0",
            [&t](uint64_t i) { return drawn_at(t, i).pfs; }, Curve::Looks::kArea}},
          round_up(std::max(most, 1.0)),
          rate_label};
}

Chart from_copies(const Timeline& t) {
  const Rates most = peaks_of(t);
  Chart chart;
  chart.id = "copies";
  chart.heading =
      most.peers > 0 ? "Read from tiers and other nodes per second" : "Read from tiers per second";
  chart.description = "Bytes read per second over time, at most " + size_label(most.tiers) +
                      " from tiers and " + size_label(most.peers) + " from other nodes";
  chart.top = round_up(std::max({most.tiers, most.peers, 1.0}));
  chart.label = rate_label;
  chart.curves = {{"from tiers, at most " + rate_label(most.tiers), "c1",
                   [&t](uint64_t i) { return drawn_at(t, i).tiers; }}};
  if (most.peers > 0)
    chart.curves.push_back({"from other nodes, at most " + rate_label(most.peers), "c2",
                            [&t](uint64_t i) { return drawn_at(t, i).peers; }});
  return chart;
}

Chart staging(const Timeline& t) {
  const std::optional<double> last = staged_at(t, t.series.count - 1);
  return {"staged",
          "Staged part of the dataset",
          "Percent of the dataset's bytes that were staged, over time; " +
              (last ? fmt::format("{:.1f}% in the end", *last) : "not known"),
          {{"staged on this node", "c3", [&t](uint64_t i) { return staged_at(t, i); }, Curve::Looks::kArea}},
          100,
          [](double value) { return fmt::format("{:.0f}%", value); }};
}

Chart fill(const Timeline& t) {
  constexpr const char* kKinds[] = {"c1", "c2", "c3", "c4", "c0"};
  constexpr uint64_t kMostTimes = 4;  // what is placed, a quota is drawn
  Chart chart{"fill", "Fill of the tiers", "Bytes placed on each tier, over time", {}, 1, size_label};
  uint64_t most = 1;
  for (size_t n = 0; n < std::min<size_t>(t.tiers.size(), kMaxTiers); ++n) {
    for (uint64_t i = 0; i < t.series.count; ++i) most = std::max(most, t.at(i).placed_bytes[n]);
    chart.curves.push_back(
        {t.tiers[n].name +
             (t.tiers[n].granted > 0 ? ", which may have " + format_size(t.tiers[n].granted) : ""),
         kKinds[n % std::size(kKinds)],
         [&t, n](uint64_t i) { return static_cast<double>(t.at(i).placed_bytes[n]); }});
  }
  const uint64_t placed = most;
  for (size_t n = 0; n < std::min<size_t>(t.tiers.size(), kMaxTiers); ++n) {
    const uint64_t quota = t.tiers[n].granted;
    if (quota == 0 || quota / kMostTimes > placed) continue;
    most = std::max(most, quota);
    chart.curves.push_back({"", kKinds[n % std::size(kKinds)],
                            [quota](uint64_t) { return static_cast<double>(quota); }, Curve::Looks::kDashes});
  }
  chart.top = round_up(static_cast<double>(most));
  return chart;
}

std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::string drawn = "<div class=\"scroll\"><table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    drawn += "<tr>";
    for (const std::string& value : rows[i])
      drawn += fmt::format("<{0}>{1}</{0}>", i == 0 ? "th" : "td", in_markup(value));
    drawn += "</tr>\n";
  }
  return drawn + "</table></div>\n";
}

// ---- how long opens took

constexpr double kBarsHeight = 130, kBarsFloor = kBarsHeight - kBottom;

// Of a bucket's right end, which is its bound.
double bar_x(uint32_t bucket) { return kLeft + (kWidth - kLeft - kRight) * (bucket + 1) / kOpenBuckets; }

// Each bar is a part of the opens of this kind that were timed.
std::string bars_of(const OpenTimes& times, OpenKind kind) {
  constexpr const char* kKinds[] = {"c1", "c4", "c0"};
  constexpr uint32_t kEach = 5;  // has a label
  const char* const css = kKinds[static_cast<uint32_t>(kind)];
  const uint64_t *counts = times.of(kind), all = timed(times, kind);
  const auto percent = [&](uint64_t n) { return 100 * static_cast<double>(n) / static_cast<double>(all); };
  const double most = percent(*std::max_element(counts, counts + kOpenBuckets)), top = most > 50   ? 100.0
                                                                                       : most > 20 ? 50.0
                                                                                                   : 20.0;
  const auto y = [&](double value) { return kBarsFloor - (kBarsFloor - kTop) * value / top; };
  std::string drawn;
  for (const double value : {0.0, top / 2, top}) drawn += grid_at(y(value), fmt::format("{:.0f}%", value));
  for (uint32_t b = 1; b < kOpenBuckets; b += kEach)
    drawn += text_at(bar_x(b), kBarsHeight - 8, "middle", duration_text(bound_ns(b)));
  for (uint32_t b = 0; b < kOpenBuckets; ++b) {
    if (counts[b] == 0) continue;
    const double left = b == 0 ? kLeft : bar_x(b - 1),
                 above = std::min(y(percent(counts[b])), kBarsFloor - 1);
    drawn +=
        fmt::format("<rect class=\"bar {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
                    css, left + 1, above, bar_x(b) - left - 2, kBarsFloor - above);
  }
  const std::string told =
      fmt::format("opens {}, {} timed: {}", kind_text(kind), all, opens_took(times, kind));
  return fmt::format("<div><ul>{}</ul>\n{}</div>\n", legend_of(css, told), svg_of(kBarsHeight, told, drawn));
}

std::string open_times_section(const OpenTimes& times, const std::string& id, const std::string& where) {
  std::string drawn;
  for (const OpenKind kind : kAllOpenKinds)
    if (timed(times, kind) > 0) drawn += bars_of(times, kind);
  if (drawn.empty()) return "";
  return fmt::format(
      "<section id=\"{}\">\n<h2>How long opens took{}</h2>\n<p class=\"note\">Of opens of tiers&#39; copies, "
      "the "
      "first on each processor and then one of {} is timed. Of opens that waited for the agent, and of those "
      "on "
      "the PFS that did not wait, all are.</p>\n<div class=\"bars\">\n{}</div>\n"
      "<details><summary>The same in numbers</summary>\n{}</details>\n</section>\n",
      id, in_markup(where), kOneTimedOf, drawn, table_of(open_time_rows(times)));
}

// Of the n-th node; an id is one of a page.
std::string nth_id(const std::string& id, size_t n) { return n == 0 ? id : id + "-" + std::to_string(n + 1); }

// Of each node, where it is known; with the same axes, so that they can be compared.
std::string charts_of(Chart (*chart_of_node)(const Timeline&), const PageOf& page,
                      const std::vector<Told>& nodes) {
  std::vector<Chart> charts;  // without curves: not known
  double top = 0;
  uint64_t end_ms = 0;
  for (const Told& node : nodes) {
    charts.push_back(node.timeline.series.count == 0 ? Chart() : chart_of_node(node.timeline));
    top = std::max(top, charts.back().top);
    end_ms = std::max(end_ms, node.timeline.end_ms());
  }
  std::string drawn;
  for (size_t n = 0; n < nodes.size(); ++n) {
    Chart& chart = charts[n];
    if (chart.curves.empty()) continue;
    chart.id = nth_id(chart.id, n);
    if (nodes.size() > 1)
      chart.heading += " on " + nodes[n].node;
    else if (page.several_nodes)
      chart.heading += " on this node";
    chart.top = top;
    chart.end_ms = end_ms;
    drawn += chart_of(chart, nodes[n].timeline);
  }
  return drawn;
}

}  // namespace

std::string in_markup(const std::string& any) {
  constexpr std::pair<char, const char*> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string safe;
  for (const char c : escaped(any)) {
    const auto* const at =
        std::find_if(std::begin(kEntities), std::end(kEntities), [&](const auto& e) { return e.first == c; });
    safe += at == std::end(kEntities) ? std::string(1, c) : at->second;
  }
  return safe;
}

std::string span_text(uint64_t ms) { return when(ms, ms); }

std::string page_of(const PageOf& page, const std::vector<Told>& nodes) {
  std::string html = kHead;
  html +=
      fmt::format("<title>{0}</title>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"about\">{1}</p>\n",
                  in_markup(page.title), in_markup(page.about));
  if (!page.advice.empty()) html += "<p class=\"advice\">" + in_markup(page.advice) + "</p>\n";
  html += "<dl>\n";
  for (const PageOf::Fact& fact : page.facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd><dd>{}</dd></div>\n", in_markup(fact.name),
                        in_markup(fact.value), in_markup(fact.more));
  html += "</dl>\n";
  for (const auto chart : {from_pfs, from_copies, staging, fill}) html += charts_of(chart, page, nodes);
  const auto on = [&](size_t n) { return nodes.size() > 1 ? " on " + nodes[n].node : std::string(); };
  for (size_t n = 0; n < nodes.size(); ++n)
    if (nodes[n].timeline.series.count == 0)
      html += "<p class=\"note\">How it went over time" + in_markup(on(n)) + " is not known.</p>\n";
  for (size_t n = 0; n < nodes.size(); ++n)
    html += open_times_section(nodes.size() > 1 ? nodes[n].own.open_times : nodes[n].counts.open_times,
                               nth_id("opens", n), on(n));
  if (page.nodes.size() > 1)
    html += "<section id=\"nodes\">\n<h2>Nodes</h2>\n" + table_of(page.nodes) + "</section>\n";
  return html + "</main>\n<footer>monarchctl " PACKAGE_VERSION "</footer>\n</body>\n</html>\n";
}

}  // namespace monarch::admin

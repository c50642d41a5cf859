// SPDX-License-Identifier: Apache-2.0
#include "admin/simulate_chart.h"

#include <algorithm>
#include <cstdio>

#include "admin/page.h"

namespace monarch::admin {
namespace {

constexpr int kLeft = 300, kWidth = 380, kRow = 24, kAll = 820;
constexpr const char* kColours[] = {"#9aa0a6", "#34a853", "#fbbc04", "#ff8f00", "#a142f4", "#24c1e0"};
constexpr char kOfPeers[] = "#1a73e8", kOfPfs[] = "#d93025";

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string text_at(double x, int y, const std::string& text, const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + std::to_string(y) + "\"" + more + ">" + in_markup(text) +
         "</text>\n";
}

std::string box(double x, int y, double width, const std::string& colour) {
  return "<rect x=\"" + number(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" + number(width) +
         "\" height=\"17\" fill=\"" + colour + "\"/>\n";
}

struct Part {
  std::string name, colour;
};

// As seconds_of() has their seconds.
std::vector<Part> parts_of(const std::vector<std::string>& sources) {
  std::vector<Part> parts = {{"computing", kColours[0]}, {"staging", kColours[1]}};
  for (size_t i = 0; i < sources.size(); ++i) {
    const size_t tiers = std::size(kColours) - 2;
    const char* colour = i + 1 == sources.size()   ? kOfPfs
                         : i + 2 == sources.size() ? kOfPeers
                                                   : kColours[2 + i % tiers];
    parts.push_back({"waiting for " + sources[i], colour});
  }
  return parts;
}
std::vector<double> seconds_of(const simulate::Outcome& outcome) {
  std::vector<double> seconds = {outcome.computing, outcome.staging};
  seconds.insert(seconds.end(), outcome.waiting.begin(), outcome.waiting.end());
  return seconds;
}

std::string bar_at(int y, const Bar& bar, const std::vector<Part>& parts, double scale) {
  std::string drawn = text_at(kLeft - 10, y + 13, bar.label, " text-anchor=\"end\"");
  if (!bar.outcome.refusal.empty()) return drawn + text_at(kLeft, y + 13, bar.outcome.refusal);
  const std::vector<double> seconds = seconds_of(bar.outcome);
  double x = kLeft;
  for (size_t i = 0; i < seconds.size(); x += seconds[i++] * scale)
    if (seconds[i] > 0) drawn += box(x, y, seconds[i] * scale, parts[i].colour);
  return drawn + text_at(x + 6, y + 13, number(bar.outcome.seconds) + " s");
}

}  // namespace

std::string chart_of(const std::string& title, const std::vector<std::string>& sources,
                     const std::vector<Bar>& bars) {
  double longest = 1e-9;
  for (const Bar& bar : bars) longest = std::max(longest, bar.outcome.seconds);
  const std::vector<Part> parts = parts_of(sources);
  std::string drawn = text_at(10, 24, title, " class=\"title\"");
  int y = 40;
  for (const Part& part : parts) {
    drawn += box(kLeft, y, 17, part.colour) + text_at(kLeft + 26, y + 13, part.name);
    y += kRow;
  }
  y += kRow / 2;
  for (const Bar& bar : bars) {
    drawn += bar_at(y, bar, parts, kWidth / longest);
    y += kRow;
  }
  const std::string size = std::to_string(kAll) + " " + std::to_string(y + 10);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + size + "\" width=\"" +
         std::to_string(kAll) + "\" height=\"" + std::to_string(y + 10) + "\" role=\"img\">\n<title>" +
         in_markup(title) +
         "</title>\n<style>text{font:13px sans-serif;fill:#202124}.title{font-weight:bold}.page{fill:#fff}"
         "@media(prefers-color-scheme:dark){text{fill:#e8eaed}.page{fill:#202124}}</style>\n"
         "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n" +
         drawn + "</svg>\n";
}

}  // namespace monarch::admin

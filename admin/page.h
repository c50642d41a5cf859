// SPDX-License-Identifier: Apache-2.0
// monarchctl report --html: a page for a browser, in one file that loads nothing.
#pragma once

#include <string>
#include <vector>

#include "admin/reports.h"

namespace monarch::admin {

// A text as HTML and SVG have it: it is shown, and does nothing.
std::string in_markup(const std::string& any);

// So long a time, with parts of seconds where it is short.
std::string span_text(uint64_t ms);

struct PageOf {
  struct Fact {
    std::string name, value, more;
  };
  std::string title, about, advice;  // advice: "": none
  bool several_nodes = false;        // the job has
  std::vector<Fact> facts;
  // Of each node, or of this one and the others together, and of all: rows as wide as the first, which has
  // the headings.
  std::vector<std::vector<std::string>> nodes;
};
// With what one node has told, of all, or several, each of itself. Whatever stands in these texts is shown,
// and does nothing.
std::string page_of(const PageOf& page, const std::vector<Told>& nodes);

}  // namespace monarch::admin

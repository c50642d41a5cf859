// SPDX-License-Identifier: Apache-2.0
// The terminal as a page of lines (ncurses), for `monarchctl top`.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "admin/output.h"
#include "runtime/base/result.h"

namespace monarch::admin {

// Move-only, one at a time, one thread. While there is one, standard output belongs to it; its end leaves the
// terminal as it was before, also after the terminal is gone.
class Screen {
 public:
  enum class Key { kNone, kOther, kUp, kDown, kPageUp, kPageDown, kHome, kEnd };
  struct Pressed {
    Key key = Key::kNone;
    char character = 0;  // of kOther: printable ASCII, or 0
  };

  // Standard input and output have to be a terminal of a known type that can move its cursor.
  static Result<Screen> open();
  Screen(Screen&&) = default;
  Screen& operator=(Screen&&) = delete;

  // Takes over the size that the terminal has now, and wipes the page.
  void begin();
  int lines() const;
  int columns() const;
  // As much of it as the line has room for; no line and no column outside of the page. `text` is plain, such
  // as escaped() makes it. Returns the column behind it.
  int put(int line, int column, const std::string& text, std::optional<Colour> colour = {});
  // Shows the page, with what is different alone.
  void show();

  // The next key that was pressed; does not wait.
  Pressed pressed();

 private:
  struct Close {
    void operator()(void* screen) const;
  };
  explicit Screen(void* screen) : screen_(screen) {}

  std::unique_ptr<void, Close> screen_;  // ncurses' SCREEN
};

// What of the text fits into so many columns; what cannot be shown in this locale becomes '?'.
std::string cut_to(const std::string& text, int columns);
// How many columns it takes.
int columns_of(const std::string& text);

}  // namespace monarch::admin

// SPDX-License-Identifier: Apache-2.0
#include "admin/screen.h"

#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

// Its macros have names of everyday.
#define NCURSES_NOMACROS 1
#include <curses.h>
#include <term.h>
#undef columns
#undef lines

namespace monarch::admin {
namespace {

constexpr int kEscapeDelayMs = 25;  // behind ESC the rest of a key comes at once

// Numbers of pairs are those of Colour, from 1.
short pair_of(Colour colour) { return static_cast<short>(static_cast<int>(colour) + 1); }

void use_colours() {
  const char* no = ::getenv("NO_COLOR");
  if ((no && *no) || !::has_colors() || ::start_color() == ERR || ::use_default_colors() == ERR) return;
  constexpr std::pair<Colour, short> kColours[] = {
      {Colour::kGood, COLOR_GREEN}, {Colour::kDoubtful, COLOR_YELLOW}, {Colour::kBad, COLOR_RED}};
  for (const auto& [colour, number] : kColours) ::init_pair(pair_of(colour), number, -1);
}

// A heading is marked by bold letters, not by a colour.
attr_t look_of(Colour colour) {
  if (colour == Colour::kHeading) return A_BOLD;
  return colour == Colour::kBad ? A_BOLD : A_NORMAL;
}

// Calls `take` with the bytes of each character and its columns, until that says false.
template <typename Take>
void each_character(const std::string& text, Take take) {
  mbstate_t state{};
  for (size_t at = 0; at < text.size();) {
    wchar_t wide = 0;
    const size_t bytes = ::mbrtowc(&wide, text.data() + at, text.size() - at, &state);
    const bool whole = bytes != 0 && bytes <= text.size() - at;
    const int columns = whole ? ::wcwidth(wide) : -1;
    if (!whole) state = mbstate_t{};
    const size_t step = whole ? bytes : 1;
    if (!take(columns < 0 ? std::string("?") : text.substr(at, step), columns < 0 ? 1 : columns)) return;
    at += step;
  }
}

}  // namespace

std::string cut_to(const std::string& text, int columns) {
  std::string fits;
  each_character(text, [&](const std::string& character, int width) {
    if (width > columns) return false;
    columns -= width;
    fits += character;
    return true;
  });
  return fits;
}

int columns_of(const std::string& text) {
  int columns = 0;
  each_character(text, [&](const std::string&, int width) {
    columns += width;
    return true;
  });
  return columns;
}

Result<Screen> Screen::open() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO})
    if (::isatty(fd) == 0)
      return bad_input(std::string("standard ") + (fd == STDIN_FILENO ? "input" : "output") +
                       " is no terminal; give --batch for lines of text, or --json");
  const char* type = ::getenv("TERM");
  int found = 0;
  const bool known = ::setupterm(nullptr, STDOUT_FILENO, &found) == OK && ::tigetstr("cup") != nullptr &&
                     ::tigetstr("clear") != nullptr;
  if (::cur_term) ::del_curterm(::cur_term);
  ::setlocale(LC_CTYPE, "");
  SCREEN* const screen = known ? ::newterm(nullptr, stdout, stdin) : nullptr;
  if (!screen)
    return bad_input(std::string("a terminal of type '") + (type ? type : "") +
                     "' ($TERM) cannot be written to as a page; give --batch for lines of text, or --json");
  ::set_escdelay(kEscapeDelayMs);
  ::cbreak();
  ::noecho();
  ::nonl();
  ::curs_set(0);
  ::keypad(::stdscr, TRUE);
  ::nodelay(::stdscr, TRUE);
  use_colours();
  return Screen(screen);
}

void Screen::Close::operator()(void* screen) const {
  ::endwin();
  ::delscreen(static_cast<SCREEN*>(screen));
}

void Screen::begin() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0 &&
      (size.ws_row != lines() || size.ws_col != columns()))
    ::resizeterm(size.ws_row, size.ws_col);
  ::werase(::stdscr);
}

int Screen::lines() const { return ::getmaxy(::stdscr); }
int Screen::columns() const { return ::getmaxx(::stdscr); }

int Screen::put(int line, int column, const std::string& text, std::optional<Colour> colour) {
  if (line < 0 || column < 0 || line >= lines() || column >= columns()) return column;
  const std::string fits = cut_to(text, columns() - column);
  if (colour)
    ::wattr_set(::stdscr, look_of(*colour), *colour == Colour::kHeading ? short{0} : pair_of(*colour),
                nullptr);
  ::mvwaddstr(::stdscr, line, column, fits.c_str());
  ::wattr_set(::stdscr, A_NORMAL, 0, nullptr);
  return column + columns_of(fits);
}

void Screen::show() { ::wrefresh(::stdscr); }

Screen::Pressed Screen::pressed() {
  const int key = ::wgetch(::stdscr);
  switch (key) {
    case ERR:
      return {};
    case KEY_UP:
      return {Key::kUp};
    case KEY_DOWN:
      return {Key::kDown};
    case KEY_PPAGE:
      return {Key::kPageUp};
    case KEY_NPAGE:
      return {Key::kPageDown};
    case KEY_HOME:
      return {Key::kHome};
    case KEY_END:
      return {Key::kEnd};
    default:
      return {Key::kOther, key >= ' ' && key <= '~' ? static_cast<char>(key) : '\0'};
  }
}

}  // namespace monarch::admin

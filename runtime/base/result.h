// SPDX-License-Identifier: Apache-2.0
// Errors are values: a code a program can test and a text a person can act on.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

namespace monarch {

struct Error {
  int code = 0;      // an errno value; EINVAL for bad input
  std::string text;  // "open /scratch/x: Permission denied"
};

// The one place where errno becomes an Error: "<what was done to what>: <reason>".
inline Error errno_error(std::string what, int code = errno) {
  return Error{code, std::move(what) + ": " + std::strerror(code)};
}
inline Error bad_input(std::string text) { return Error{EINVAL, std::move(text)}; }

// A T, or the Error that kept it from existing. A function that returns an Error left no side effect.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}      // NOLINT: conversion is the point
  Result(Error error) : held_(std::move(error)) {}  // NOLINT
  bool ok() const { return held_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() { return std::get<0>(held_); }
  const T& operator*() const { return std::get<0>(held_); }
  T* operator->() { return &std::get<0>(held_); }
  const T* operator->() const { return &std::get<0>(held_); }
  const Error& error() const { return std::get<1>(held_); }
  T take() {
    T value = std::move(std::get<0>(held_));
    return value;
  }

 private:
  std::variant<T, Error> held_;
};

// Success, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT: conversion is the point
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool failed_ = false;
};

// Leaves the calling function with the error of `expression` (a Status or a Result).
#define MONARCH_TRY(expression)                          \
  do {                                                   \
    auto monarch_try_ = (expression);                    \
    if (!monarch_try_.ok()) return monarch_try_.error(); \
  } while (0)

}  // namespace monarch

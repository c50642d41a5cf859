// SPDX-License-Identifier: Apache-2.0
// JSON, of which nlohmann-json reads and writes the text: json.cc alone includes its header, which takes
// seconds of every file. As there, {{"a", 1}, {"b", {2, 3}}} is an object, and {1, "a"} an array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace monarch {

class Json {
 public:
  using Array = std::vector<Json>;
  // In the order in which names were added; what was read, in their alphabetical order.
  using Object = std::vector<std::pair<std::string, Json>>;

  Json();  // null
  Json(bool value);
  Json(int value);
  Json(long value);
  Json(unsigned value);
  Json(unsigned long value);
  Json(double value);
  Json(const char* text);
  Json(std::string text);
  Json(const std::vector<std::string>& texts);
  // An object, if each is an array of a text and something else.
  Json(std::initializer_list<Json> values);
  template <typename T>
  Json(const std::optional<T>& value) : Json(value ? Json(*value) : Json()) {}
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();
  static Json array(std::initializer_list<Json> values = {});
  static Json object();

  // Nothing: it is no JSON, or too deep.
  static std::optional<Json> parse(const std::string& text);
  // On one line if `indent` is negative. What is not UTF-8 is replaced.
  std::string dump(int indent = -1) const;
  std::string dump_ascii(int indent = -1) const;

  bool is_null() const;
  bool is_bool() const;
  bool is_number() const;
  bool is_number_unsigned() const;  // a whole one from 0, as text has it
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;
  // What is of another type is false, 0 or empty. number(): of is_number_unsigned().
  bool boolean() const;
  uint64_t number() const;
  double real() const;
  const std::string& text() const;
  const Array& elements() const;
  const Object& members() const;
  size_t size() const;  // of an array or an object, else 0

  const Json& at(size_t element) const;  // null: it is not there
  const Json* find(const std::string& name) const;
  const Json& operator[](const std::string& name) const;  // null: it is not there
  // Null becomes an object or an array; anything else has to be one.
  Json& operator[](const std::string& name);
  void update(const Json& object);
  void push_back(Json value);

  bool operator==(const Json& other) const;

 private:
  friend struct JsonText;
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

}  // namespace monarch

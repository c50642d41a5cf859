// SPDX-License-Identifier: Apache-2.0
// JSON, of which nlohmann-json reads and writes the text: json.cc alone includes its header, which takes
// seconds of every file. As there, {{"a", 1}, {"b", {2, 3}}} is an object, and {1, "a"} an array.
#pragma once

#include <concepts>
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
  std::optional<std::string> dump_if_utf8(int indent = -1) const;  // nothing: a text is not UTF-8

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

  // Whether it is of *to's type, and fits into it: only then *to is set.
  bool read(bool* to) const;
  bool read(std::string* to) const;
  template <std::integral T>
  bool read(T* to) const {
    const auto fits = [to](const auto* number) {
      if (!number || !std::in_range<T>(*number)) return false;
      *to = static_cast<T>(*number);
      return true;
    };
    return fits(std::get_if<uint64_t>(&value_)) || fits(std::get_if<int64_t>(&value_));
  }

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

// A record's members are listed once, by a function that takes either of these: one reads them from an
// object, the other makes one of them. need() is of those that must be there, may() of those that have
// another value if not.
class JsonReader {
 public:
  explicit JsonReader(const Json& object) : object_(object) {}
  template <typename T>
  void need(const char* name, T* value) {
    if (fault_.empty() && !object_[name].read(value)) fault_ = name;
  }
  template <typename T>
  void may(const char* name, T* value) {
    if (object_.find(name)) need(name, value);
  }
  template <typename T>
  void may(const char* name, std::optional<T>* value) {
    if (object_.find(name)) need(name, &value->emplace());
  }
  // Of the first member that is not there, or is not of its type: the name; "": there is none.
  const std::string& fault() const { return fault_; }

 private:
  const Json& object_;
  std::string fault_;
};

class JsonWriter {
 public:
  template <typename T>
  void need(const char* name, T* value) {
    object_[name] = *value;
  }
  template <typename T>
  void may(const char* name, T* value) {
    if (*value != T()) object_[name] = *value;
  }
  Json& object() { return object_; }

 private:
  Json object_ = Json::object();
};

}  // namespace monarch

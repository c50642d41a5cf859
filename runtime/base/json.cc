// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace monarch {

struct JsonText {
  static constexpr int kDeepest = 100;

  static std::optional<Json> read(const nlohmann::json& from, int depth) {
    if (depth > kDeepest || from.is_discarded()) return {};
    if (from.is_boolean()) return Json(from.get<bool>());
    if (from.is_number_unsigned()) return Json(from.get<uint64_t>());
    if (from.is_number_integer()) return Json(from.get<int64_t>());
    if (from.is_number()) return Json(from.get<double>());
    if (from.is_string()) return Json(from.get_ref<const std::string&>());
    if (from.is_null()) return Json();
    Json::Array elements;
    Json::Object members;
    for (const auto& [name, value] : from.items()) {
      std::optional<Json> inner = read(value, depth + 1);
      if (!inner) return {};
      if (from.is_array())
        elements.push_back(std::move(*inner));
      else
        members.emplace_back(name, std::move(*inner));
    }
    Json json;
    if (from.is_array())
      json.value_ = std::move(elements);
    else
      json.value_ = std::move(members);
    return json;
  }

  static nlohmann::ordered_json written(const Json& json) { return std::visit(JsonText(), json.value_); }
  nlohmann::ordered_json operator()(std::monostate) const { return {}; }
  nlohmann::ordered_json operator()(const Json::Array& elements) const {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const Json& element : elements) array.push_back(written(element));
    return array;
  }
  nlohmann::ordered_json operator()(const Json::Object& members) const {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto& [name, value] : members) object.push_back({name, written(value)});
    return object;
  }
  template <typename T>
  nlohmann::ordered_json operator()(const T& value) const {
    return value;
  }

  static std::string dump(const Json& json, int indent, bool ascii) {
    return written(json).dump(indent, ' ', ascii, nlohmann::ordered_json::error_handler_t::replace);
  }
};

namespace {

const Json kNull;

template <typename T, typename Value>
const T& as(const Value& value) {
  static const T kOther{};
  const T* held = std::get_if<T>(&value);
  return held ? *held : kOther;
}

}  // namespace

Json::Json() = default;
Json::Json(bool value) : value_(value) {}
Json::Json(int value) : Json(long{value}) {}
Json::Json(long value) : value_(static_cast<uint64_t>(value)) {
  if (value < 0) value_ = int64_t{value};
}
Json::Json(unsigned value) : value_(uint64_t{value}) {}
Json::Json(unsigned long value) : value_(uint64_t{value}) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(const std::vector<std::string>& texts) : value_(Array(texts.begin(), texts.end())) {}
Json::Json(std::initializer_list<Json> values) {
  const auto is_member = [](const Json& v) { return v.is_array() && v.size() == 2 && v.at(0).is_string(); };
  if (!std::all_of(values.begin(), values.end(), is_member)) {
    value_ = Array(values);
    return;
  }
  Object members;
  for (const Json& v : values) members.emplace_back(v.at(0).text(), v.at(1));
  value_ = std::move(members);
}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json other) noexcept {
  value_ = std::move(other.value_);
  return *this;
}
Json::~Json() = default;

Json Json::array(std::initializer_list<Json> values) {
  Json json;
  json.value_ = Array(values);
  return json;
}
Json Json::object() {
  Json json;
  json.value_ = Object();
  return json;
}

std::optional<Json> Json::parse(const std::string& text) {
  return JsonText::read(nlohmann::json::parse(text, nullptr, false), 0);
}
std::string Json::dump(int indent) const { return JsonText::dump(*this, indent, false); }
std::optional<std::string> Json::dump_if_utf8(int indent) const {
  try {
    return JsonText::written(*this).dump(indent);
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}
std::string Json::dump_ascii(int indent) const { return JsonText::dump(*this, indent, true); }

bool Json::is_null() const { return std::holds_alternative<std::monostate>(value_); }
bool Json::is_bool() const { return std::holds_alternative<bool>(value_); }
bool Json::is_number() const {
  return is_number_unsigned() || std::holds_alternative<int64_t>(value_) ||
         std::holds_alternative<double>(value_);
}
bool Json::is_number_unsigned() const { return std::holds_alternative<uint64_t>(value_); }
bool Json::is_string() const { return std::holds_alternative<std::string>(value_); }
bool Json::is_array() const { return std::holds_alternative<Array>(value_); }
bool Json::is_object() const { return std::holds_alternative<Object>(value_); }

bool Json::read(bool* to) const {
  if (is_bool()) *to = boolean();
  return is_bool();
}
bool Json::read(std::string* to) const {
  if (is_string()) *to = text();
  return is_string();
}

bool Json::boolean() const { return as<bool>(value_); }
uint64_t Json::number() const { return as<uint64_t>(value_); }
double Json::real() const {
  if (is_number_unsigned()) return static_cast<double>(number());
  if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<double>(*whole);
  return as<double>(value_);
}
const std::string& Json::text() const { return as<std::string>(value_); }
const Json::Array& Json::elements() const { return as<Array>(value_); }
const Json::Object& Json::members() const { return as<Object>(value_); }
size_t Json::size() const { return elements().size() + members().size(); }

const Json& Json::at(size_t element) const {
  return element < elements().size() ? elements()[element] : kNull;
}
const Json* Json::find(const std::string& name) const {
  const auto found = std::find_if(members().begin(), members().end(),
                                  [&](const auto& member) { return member.first == name; });
  return found == members().end() ? nullptr : &found->second;
}
const Json& Json::operator[](const std::string& name) const {
  const Json* found = find(name);
  return found ? *found : kNull;
}
Json& Json::operator[](const std::string& name) {
  if (is_null()) value_ = Object();
  auto& members = std::get<Object>(value_);
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
  return found == members.end() ? members.emplace_back(name, Json()).second : found->second;
}
void Json::update(const Json& object) {
  for (const auto& [name, value] : object.members()) (*this)[name] = value;
}
void Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  std::get<Array>(value_).push_back(std::move(value));
}

bool Json::operator==(const Json& other) const { return value_ == other.value_; }

}  // namespace monarch

// Directives: variables, functions, registers and parameters get their places.
#include "tests/ptx/parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sortition::testing::ptx {
namespace {

constexpr uint32_t kRowAlignment = 64;
// Unused bytes between the variables of local memory.
constexpr uint32_t kLocalGap = 32;

uint32_t RoundUp(uint64_t value, uint32_t to) { return uint32_t((value + to - 1) / to * to); }

uint32_t SizeOfType(std::string_view type) {
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(digits);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

char WidthOfType(std::string_view type) {
  if (type == ".pred") return 'p';
  const uint32_t size = SizeOfType(type);
  return size == 2 ? 'h' : size == 4 ? 'w' : size == 8 ? 'd' : 0;
}

}  // namespace

void Parser::Fail(const std::string& what) const {
  throw Unknown("line " + std::to_string(tokens_[at_ == 0 ? 0 : at_ - 1].line) + ": " + what);
}
bool Parser::Take(std::string_view text) {
  if (peek().text != text) return false;
  ++at_;
  return true;
}
void Parser::Expect(std::string_view text) {
  const std::string is(Next().text);
  if (is != text) Fail("'" + is + "' where '" + std::string(text) + "' is expected");
}
std::string Parser::Word() {
  const Token& token = Next();
  if (token.kind != Token::Kind::kWord) Fail("'" + std::string(token.text) + "' where a name is expected");
  return std::string(token.text);
}
uint64_t Parser::Number() {
  const Token& token = Next();
  if (token.kind != Token::Kind::kNumber) Fail("'" + std::string(token.text) + "' where a number is expected");
  return token.bits;
}
int64_t Parser::SignedNumber() {
  const bool is_negative = Take("-");
  const uint64_t bits = Number();
  return int64_t(is_negative ? 0 - bits : bits);
}

void Parser::Define(const std::string& name, const Symbol& symbol) { scopes_.back()[name] = symbol; }

const Parser::Symbol* Parser::FindOrNull(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return &found->second;
  }
  return nullptr;
}
const Parser::Symbol& Parser::Find(const std::string& name) const {
  const Symbol* const found = FindOrNull(name);
  if (found == nullptr) Fail("name " + name);
  return *found;
}

uint32_t Parser::NewRow(char width) {
  const uint32_t at = program_.registers_bytes;
  const uint32_t bytes = width == 'p' ? 4 : kLanes * (width == 'h' ? 2 : width == 'w' ? 4 : 8);
  program_.registers_bytes = width == 'p' ? at + bytes : RoundUp(at, kRowAlignment) + bytes;
  return width == 'p' ? at : RoundUp(at, kRowAlignment);
}

uint32_t Parser::Constant(char width, uint64_t bits) {
  if (width == 'p') bits = bits != 0 ? kAllLanes : 0;
  if (width == 'h') bits &= 0xffff;
  if (width == 'w') bits &= 0xffffffff;
  const auto [found, is_new] = constants_.try_emplace({width, bits}, 0);
  if (is_new) {
    found->second = NewRow(width);
    const uint32_t size = width == 'p' ? 0 : width == 'h' ? 2 : width == 'w' ? 4 : 8;
    program_.constants.push_back({found->second, size, bits});
  }
  return found->second;
}

// `.align 8 .b8 NAME[16]` or `.b64 NAME`: returns its bytes.
uint32_t Parser::ParseSize(uint32_t* alignment, std::string* name) {
  *alignment = 0;
  if (Take(".align")) *alignment = uint32_t(Number());
  const std::string type = Word();
  uint32_t bytes = SizeOfType(type);
  if (bytes == 0) Fail("type " + type);
  *alignment = std::max(*alignment, bytes);
  *name = Word();
  if (Take("[")) {
    bytes *= uint32_t(Number());
    Expect("]");
  }
  return bytes;
}

void Parser::ParseVariable(std::string_view space) {
  uint32_t alignment = 0;
  std::string name;
  const uint32_t bytes = ParseSize(&alignment, &name);
  uint64_t address = 0;
  if (space == ".shared") {
    address = RoundUp(program_.shared_bytes, alignment);
    program_.shared_bytes = uint32_t(address) + bytes;
  } else if (space == ".local") {
    address = RoundUp(program_.local_valid.size() + kLocalGap, std::max(alignment, 16u));
    program_.local_valid.resize(address, 0);
    program_.local_valid.resize(address + bytes, 1);
  } else {
    std::vector<Variable::Line> memory(bytes / sizeof(Variable::Line) + 1);
    program_.variables.push_back({std::move(memory), bytes});
    address = program_.variables.back().begin();
    auto* const to = reinterpret_cast<std::byte*>(address);
    if (Take("=")) {
      Expect("{");
      for (uint32_t i = 0; !Take("}"); ++i) {
        if (i >= bytes) Fail("more values than " + name + " has bytes");
        to[i] = std::byte(Number());
        Take(",");
      }
    }
  }
  Expect(";");
  Define(name, {Symbol::Kind::kAddress, 0, address, true});
}

// Parses parameters in parentheses. They get the places of an earlier declaration, or new ones.
std::vector<uint32_t> Parser::ParseParameters(const std::vector<uint32_t>& known, uint32_t* bytes) {
  std::vector<uint32_t> places;
  Expect("(");
  while (!Take(")")) {
    Expect(".param");
    uint32_t alignment = 0;
    std::string name;
    const uint32_t size = ParseSize(&alignment, &name);
    if (places.empty() && bytes != nullptr) *bytes = size;
    uint32_t place = 0;
    if (places.size() < known.size()) {
      place = known[places.size()];
    } else {
      place = RoundUp(program_.parameter_bytes, 16);
      program_.parameter_bytes = place + size;
    }
    places.push_back(place);
    Define(name, {Symbol::Kind::kParameter, 0, place, true});
    Take(",");
  }
  return places;
}

void Parser::ParseFunction(bool is_entry) {
  scopes_.emplace_back();
  // The function's name follows its return values, whose names belong to the function's scope.
  Signature signature;
  const size_t returns_at = at_;
  const bool returns = peek().text == "(";
  if (returns) {
    while (!Take(")")) Next();
  }
  const std::string name = Word();
  const auto known = signatures_.find(name);
  const size_t after_name = at_;
  if (known != signatures_.end()) signature = known->second;
  if (returns) {
    at_ = returns_at;
    signature.returns = ParseParameters(signature.returns, nullptr);
    at_ = after_name;
  }
  if (peek().text == "(") signature.parameters = ParseParameters(signature.parameters, &signature.bytes);
  signatures_[name] = signature;
  while (peek().text == ".maxntid" || peek().text == ".minnctapersm") {
    Next();
    do {
      Number();
    } while (Take(","));
  }
  if (!Take(";")) {
    Expect("{");
    Function function;
    function.name = name;
    function.is_entry = is_entry;
    function.first = uint32_t(program_.code.size());
    if (is_entry && !signature.parameters.empty()) {
      if (signature.parameters.size() != 1) Fail("an entry of several parameters");
      function.parameters = signature.parameters[0];
      function.parameter_bytes = signature.bytes;
    }
    ParseBody(name);
    function.end = uint32_t(program_.code.size());
    program_.functions.push_back(function);
  }
  scopes_.pop_back();
}

void Parser::ParseRegisters() {
  const std::string type = Word();
  const char width = WidthOfType(type);
  if (width == 0) Fail("type " + type);
  do {
    const std::string name = Word();
    if (!Take("<")) {
      Define(name, {Symbol::Kind::kRegister, width, NewRow(width), true});
      continue;
    }
    const uint64_t count = Number();
    Expect(">");
    for (uint64_t i = 0; i < count; ++i) {
      Define(name + std::to_string(i), {Symbol::Kind::kRegister, width, NewRow(width), true});
    }
  } while (Take(","));
  Expect(";");
}

void Parser::ParseCallParameter() {
  uint32_t alignment = 0;
  std::string name;
  ParseSize(&alignment, &name);
  Expect(";");
  Define(name, {Symbol::Kind::kParameter, 0, 0, false});
}

Program Parser::ParseModule() {
  program_.special = {NewRow('w'), NewRow('w'), NewRow('w')};
  Define("%tid.x", {Symbol::Kind::kRegister, 'w', program_.special.tid_x, true});
  Define("%ctaid.x", {Symbol::Kind::kRegister, 'w', program_.special.ctaid_x, true});
  Define("%ctaid.y", {Symbol::Kind::kRegister, 'w', program_.special.ctaid_y, true});
  while (peek().kind != Token::Kind::kEnd) {
    const std::string directive = Word();
    if (directive == ".version" || directive == ".target" || directive == ".address_size") {
      const uint32_t line = tokens_[at_ - 1].line;
      while (peek().line == line && peek().kind != Token::Kind::kEnd) Next();
    } else if (directive == ".shared" || directive == ".global") {
      ParseVariable(directive);
    } else if (directive == ".visible") {
      Expect(".entry");
      ParseFunction(true);
    } else if (directive == ".entry" || directive == ".func") {
      ParseFunction(directive == ".entry");
    } else {
      Fail("directive " + directive);
    }
  }
  for (const auto& [instruction, name] : calls_) {
    const auto found = std::ranges::find(program_.functions, name, &Function::name);
    if (found == program_.functions.end()) Fail("call of " + name);
    program_.code[instruction].offset = found->first;
  }
  return std::move(program_);
}

Program Parse(std::string_view text) { return Parser(text).ParseModule(); }

const Function& Program::entry(std::string_view name) const {
  for (const Function& function : functions) {
    if (function.is_entry && function.name == name) return function;
  }
  throw Unknown("entry " + std::string(name));
}

const Function& Program::FunctionAt(uint32_t pc) const {
  const auto after = std::ranges::upper_bound(functions, pc, {}, &Function::first);
  return *(after - 1);
}

}  // namespace sortition::testing::ptx

// Statements of a function.
#include <algorithm>
#include <optional>

#include "tests/ptx/parser.h"

namespace sortition::testing::ptx {
namespace {

std::vector<std::string> Parts(const std::string& name) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at <= name.size()) {
    const size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::optional<Space> SpaceOf(const std::string& part) {
  if (part == "global") return Space::kGlobal;
  if (part == "shared") return Space::kShared;
  if (part == "local") return Space::kLocal;
  if (part == "param") return Space::kParam;
  return std::nullopt;
}

uint8_t SizeOf(const std::string& type) {
  static const std::map<std::string, uint8_t> kSizes = {{"b8", 1},  {"u8", 1},  {"s8", 1},  {"u16", 2}, {"b32", 4},
                                                        {"u32", 4}, {"f32", 4}, {"b64", 8}, {"u64", 8}, {"f64", 8}};
  const auto found = kSizes.find(type);
  return found == kSizes.end() ? 0 : found->second;
}

uint8_t SizeOfWidth(char width) { return width == 'h' ? 2 : width == 'w' ? 4 : 8; }
char WidthOfSize(uint8_t size) { return size <= 2 ? 'h' : size == 4 ? 'w' : 'd'; }

}  // namespace

void Parser::ParseBody(const std::string& function) {
  branches_.clear();
  int depth = 1;
  while (depth > 0) {
    if (Take("{")) {
      ++depth;
      scopes_.emplace_back();
    } else if (Take("}")) {
      --depth;
      if (depth > 0) scopes_.pop_back();
    } else {
      ParseStatement(function);
    }
  }
  if (!call_stores_.empty()) Fail("a parameter of no call");
  for (const auto& [instruction, label] : branches_) {
    const auto found = program_.labels.find(function + ":" + label);
    if (found == program_.labels.end()) Fail("label " + label);
    program_.code[instruction].offset = found->second;
  }
}

void Parser::ParseStatement(const std::string& function) {
  if (peek().kind == Token::Kind::kWord && tokens_[at_ + 1].text == ":") {
    program_.labels[function + ":" + Word()] = uint32_t(program_.code.size());
    return Expect(":");
  }
  if (peek().text.starts_with('.')) {
    const std::string directive = Word();
    if (directive == ".reg") return ParseRegisters();
    if (directive == ".local" || directive == ".shared") return ParseVariable(directive);
    if (directive == ".param") return ParseCallParameter();
    if (directive != ".pragma") Fail("directive " + directive);
    Next();
    return Expect(";");
  }
  ParseInstruction();
}

void Parser::ParseInstruction() {
  Instruction instruction;
  instruction.line = peek().line;
  if (Take("@")) {
    instruction.has_guard = true;
    instruction.guard_is_negated = Take("!");
    const Symbol& guard = Find(Word());
    if (guard.width != 'p') Fail("a guard that is no predicate");
    instruction.guard = uint32_t(guard.address);
  }
  const std::string name = Word();
  const std::vector<std::string> parts = Parts(name);
  instruction.cost = CostOf(name);
  if (name == "bra" || name == "bra.uni") {
    instruction.kind = Kind::kBranch;
    branches_.emplace_back(uint32_t(program_.code.size()), Word());
  } else if (name == "call.uni") {
    ParseCall(&instruction);
  } else if (name == "ret") {
    instruction.kind = Kind::kReturn;
  } else if (name == "bar.sync") {
    instruction.kind = Kind::kBarrier;
    if (Number() != 0) Fail("a barrier other than 0");
  } else if (name == "membar.gl") {
    instruction.kind = Kind::kFence;
  } else if (parts[0] == "ld" || parts[0] == "st") {
    ParseMemory(parts, &instruction);
  } else if (parts[0] == "atom") {
    ParseAtomic(parts, &instruction);
  } else {
    ParseCompute(name, &instruction);
  }
  Expect(";");
  program_.code.push_back(instruction);
}

// `call.uni (retval0), NAME, (param0, param1);`
void Parser::ParseCall(Instruction* instruction) {
  instruction->kind = Kind::kCall;
  const auto names = [this] {
    std::vector<std::string> names;
    Expect("(");
    while (!Take(")")) {
      names.push_back(Word());
      Take(",");
    }
    Take(",");
    return names;
  };
  std::vector<std::string> returns;
  if (peek().text == "(") returns = names();
  const std::string callee = Word();
  std::vector<std::string> parameters;
  if (Take(",")) parameters = names();
  const auto found = signatures_.find(callee);
  if (found == signatures_.end()) Fail("call of " + callee);
  const Signature& signature = found->second;
  if (returns.size() != signature.returns.size() || parameters.size() != signature.parameters.size()) {
    Fail("call of " + callee + " with another number of parameters");
  }
  for (const auto& [store, name] : call_stores_) {
    const auto at = std::ranges::find(parameters, name);
    if (at == parameters.end()) Fail("parameter " + name);
    program_.code[store].offset += signature.parameters[size_t(at - parameters.begin())];
  }
  call_stores_.clear();
  for (size_t i = 0; i < returns.size(); ++i) {
    Define(returns[i], {Symbol::Kind::kParameter, 0, signature.returns[i], true});
  }
  calls_.emplace_back(uint32_t(program_.code.size()), callee);
}

Parser::Address Parser::ParseAddress() {
  Address address;
  Expect("[");
  const std::string name = Word();
  const Symbol& symbol = Find(name);
  if (symbol.kind == Symbol::Kind::kRegister) {
    address.row = uint32_t(symbol.address);
    address.is_narrow = symbol.width == 'w';
    if (symbol.width != 'w' && symbol.width != 'd') Fail("address " + name);
  } else {
    address.row = Constant('d', 0);
    address.offset = int64_t(symbol.address);
    if (!symbol.is_known) address.parameter = name;
  }
  if (Take("+")) address.offset += SignedNumber();
  Expect("]");
  return address;
}

void Parser::SetAddress(const Address& address, Instruction* instruction) {
  instruction->address = address.row;
  instruction->address_is_narrow = address.is_narrow;
  instruction->offset = address.offset;
  if (address.parameter.empty()) return;
  if (instruction->kind != Kind::kStore) Fail("parameter " + address.parameter + " is read before the call");
  call_stores_.emplace_back(uint32_t(program_.code.size()), address.parameter);
}

void Parser::ParseMemory(const std::vector<std::string>& parts, Instruction* instruction) {
  const bool is_load = parts[0] == "ld";
  const auto unknown = [&] {
    std::string name = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) name += "." + parts[i];
    Fail("instruction " + name);
  };
  instruction->kind = is_load ? Kind::kLoad : Kind::kStore;
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    if (const std::optional<Space> space = SpaceOf(parts[i])) {
      instruction->space = *space;
    } else if (parts[i] == "nc" && is_load) {
      instruction->is_constant = true;
    } else if (parts[i] == "volatile" && is_load) {
      instruction->is_volatile = true;
    } else if (parts[i] == "v2" || parts[i] == "v4") {
      instruction->count = parts[i] == "v2" ? 2 : 4;
    } else {
      unknown();
    }
  }
  instruction->size = SizeOf(parts.back());
  if (instruction->size == 0) unknown();
  instruction->is_signed = parts.back()[0] == 's';
  std::vector<Operand> values;
  if (is_load) {
    values = ParseOperands();
    Expect(",");
  }
  SetAddress(ParseAddress(), instruction);
  if (!is_load) {
    Expect(",");
    values = ParseOperands();
  }
  if (values.size() != instruction->count) Fail("another number of values");
  char width = '*';
  for (const Operand& value : values) width = value.width != '*' ? value.width : width;
  if (width == '*') width = WidthOfSize(instruction->size);
  instruction->registers_size = SizeOfWidth(width);
  if (width == 'p' || instruction->registers_size < instruction->size) Fail("a register too narrow");
  for (size_t i = 0; i < values.size(); ++i) instruction->operands[i] = RowOf(values[i], width);
}

void Parser::ParseAtomic(const std::vector<std::string>& parts, Instruction* instruction) {
  instruction->kind = Kind::kAtomic;
  const std::string type = parts.back();
  std::string name = parts[1];
  if (const std::optional<Space> space = SpaceOf(parts[1])) {
    instruction->space = *space;
    name = parts.size() > 3 ? parts[2] : "";
  }
  name += "." + type;
  if (name == "add.u32" || name == "add.u64") {
    instruction->atomic = AtomicOperation::kAdd;
  } else if (name == "max.u32") {
    instruction->atomic = AtomicOperation::kMax;
  } else if (name == "and.b32") {
    instruction->atomic = AtomicOperation::kAnd;
  } else {
    Fail("instruction atom, " + name);
  }
  instruction->size = instruction->registers_size = SizeOf(type);
  const char width = WidthOfSize(instruction->size);
  instruction->operands[0] = RowOf(ParseOperand(), width);
  Expect(",");
  SetAddress(ParseAddress(), instruction);
  Expect(",");
  instruction->operands[1] = RowOf(ParseOperand(), width);
}

void Parser::ParseCompute(const std::string& name, Instruction* instruction) {
  if (!IsOperation(name)) Fail("instruction " + name);
  const std::vector<Operand> operands = ParseOperands();
  std::string shape;
  for (const Operand& operand : operands) shape += operand.width;
  const Operation* const operation = FindOperation(name, shape);
  if (operation == nullptr) Fail("instruction " + name + " with operands " + shape);
  instruction->apply = operation->apply;
  const bool unpacks = name.starts_with("mov.") && operands.size() == 3 && operation->shape[0] == operation->shape[1];
  if (unpacks || name.starts_with("shfl.")) instruction->results = 2;
  if (operation->mask_operand >= 0) {
    instruction->kind = Kind::kMeet;
    instruction->mask_operand = uint8_t(operation->mask_operand);
    instruction->is_of_whole_warp = name == "bar.warp.sync";
  }
  for (size_t i = 0; i < operands.size(); ++i) instruction->operands[i] = RowOf(operands[i], operation->shape[i]);
}

uint32_t Parser::RowOf(const Operand& operand, char width) {
  if (operand.width == '*') return Constant(width, operand.bits);
  if (operand.width != width) Fail("a register of another width");
  return uint32_t(operand.bits);
}

Parser::Operand Parser::ParseOperand() {
  if (peek().kind == Token::Kind::kNumber || peek().text == "-") return {'*', uint64_t(SignedNumber())};
  const Symbol& symbol = Find(Word());
  if (symbol.kind == Symbol::Kind::kParameter) Fail("the address of a parameter");
  return {symbol.kind == Symbol::Kind::kRegister ? symbol.width : '*', symbol.address};
}

// Parses operands up to the end of the list. Values in braces and after a bar count one by one.
std::vector<Parser::Operand> Parser::ParseOperands() {
  std::vector<Operand> operands;
  while (true) {
    if (Take("{")) {
      do {
        operands.push_back(ParseOperand());
      } while (Take(","));
      Expect("}");
    } else {
      operands.push_back(ParseOperand());
    }
    if (Take("|")) continue;
    if (peek().text != "," || tokens_[at_ + 1].text == "[") return operands;
    Next();
  }
}

}  // namespace sortition::testing::ptx

// The state of Parse: the meaning of names, and the places of the next variable, register and parameter.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/ptx/operations.h"
#include "tests/ptx/program.h"
#include "tests/ptx/tokens.h"

namespace sortition::testing::ptx {

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(Tokenize(text)) {}
  Program ParseModule();

 private:
  // A register, a variable, or a parameter of a function or of a call.
  struct Symbol {
    enum class Kind : uint8_t { kRegister, kAddress, kParameter };
    Kind kind = Kind::kRegister;
    char width = 0;        // a register's, as in Operation::shape
    uint64_t address = 0;  // or the register's place
    bool is_known = true;  // false: a call's parameter before the call
  };
  struct Signature {
    std::vector<uint32_t> returns, parameters;  // places
    uint32_t bytes = 0;                         // the first parameter's
  };
  // An operand as written: a register, or an immediate.
  struct Operand {
    char width = '*';
    uint64_t bits = 0;  // the immediate's, or the register's place
  };
  struct Address {
    uint32_t row = 0;
    bool is_narrow = false;
    int64_t offset = 0;
    std::string parameter;  // a call's, by name
  };

  [[noreturn]] void Fail(const std::string& what) const;
  const Token& peek() const { return tokens_[at_]; }
  const Token& Next() { return tokens_[at_++]; }
  bool Take(std::string_view text);
  void Expect(std::string_view text);
  std::string Word();
  uint64_t Number();
  int64_t SignedNumber();

  // parser.cc
  void ParseVariable(std::string_view space);
  void ParseFunction(bool is_entry);
  std::vector<uint32_t> ParseParameters(const std::vector<uint32_t>& known, uint32_t* bytes);
  uint32_t ParseSize(uint32_t* alignment, std::string* name);
  void ParseRegisters();
  void ParseCallParameter();
  void Define(const std::string& name, const Symbol& symbol);
  const Symbol& Find(const std::string& name) const;
  const Symbol* FindOrNull(const std::string& name) const;
  uint32_t NewRow(char width);
  uint32_t Constant(char width, uint64_t bits);

  // parser_body.cc
  void ParseBody(const std::string& function);
  void ParseStatement(const std::string& function);
  void ParseInstruction();
  void ParseCall(Instruction* instruction);
  void ParseMemory(const std::vector<std::string>& parts, Instruction* instruction);
  void ParseAtomic(const std::vector<std::string>& parts, Instruction* instruction);
  void ParseCompute(const std::string& name, Instruction* instruction);
  Operand ParseOperand();
  std::vector<Operand> ParseOperands();
  Address ParseAddress();
  void SetAddress(const Address& address, Instruction* instruction);
  uint32_t RowOf(const Operand& operand, char width);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  Program program_;
  std::vector<std::map<std::string, Symbol>> scopes_ = {{}};
  std::map<std::string, Signature> signatures_;
  std::map<std::pair<char, uint64_t>, uint32_t> constants_;
  std::vector<std::pair<uint32_t, std::string>> branches_;  // instructions of the function, and their labels
  std::vector<std::pair<uint32_t, std::string>> calls_;
  std::vector<std::pair<uint32_t, std::string>> call_stores_;  // stores to parameters of the next call
};

}  // namespace sortition::testing::ptx

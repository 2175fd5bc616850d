// The interpreter of PTX on small texts: instructions against plain C++, lanes that part and meet, and reports.
#include "tests/ptx/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace sortition::testing::ptx::machine_test {
namespace {

using ::testing::HasSubstr;

constexpr char kHead[] = ".version 9.0\n.target sm_90\n.address_size 64\n.shared .align 8 .b8 room[1024];\n";
constexpr char kBegin[] = R"(
.visible .entry Test(.param .u64 Test_param_0)
.maxntid 64, 1, 1
{
  .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .f32 %f<9>; .reg .f64 %fd<9>;
  ld.param.u64 %rd1, [Test_param_0];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
)";

struct Options {
  uint32_t blocks = 1;
  uint32_t threads = 32;
  uint64_t seed = 0;
  std::string functions = "";
  bool is_written = true;
  std::vector<Count>* counts = nullptr;  // by instruction, with transactions
  std::vector<uint64_t>* block_cycles = nullptr;
};

// Runs the body over `words` and returns the reports.
std::vector<Report> RunBody(const std::string& body, std::vector<uint64_t>* words, const Options& options = {}) {
  const Program program = Parse(kHead + options.functions + kBegin + body + "\nret;\n}\n");
  Machine machine(program);
  std::vector<MemoryRange> memory = {
      {reinterpret_cast<uint64_t>(words->data()), 8 * words->size(), false, options.is_written}};
  const uint64_t argument = memory[0].begin;
  LaunchOptions launch;
  launch.blocks_x = options.blocks;
  launch.threads = options.threads;
  launch.seed = options.seed;
  launch.max_steps = 100'000;
  machine.CountTransactions();
  if (options.block_cycles != nullptr) machine.TimeBlocks();
  machine.Launch("Test", std::as_bytes(std::span(&argument, 1)), launch, &memory);
  if (options.counts != nullptr) *options.counts = machine.counts();
  if (options.block_cycles != nullptr) *options.block_cycles = machine.block_cycles();
  return machine.reports();
}

std::vector<std::string> Texts(const std::vector<Report>& reports) {
  std::vector<std::string> texts;
  for (const Report& report : reports) texts.push_back(report.text());
  return texts;
}

bool Has(const std::vector<Report>& reports, Finding finding) {
  return std::ranges::any_of(reports, [&](const Report& report) { return report.finding == finding; });
}

// The address of the thread's word of 8 bytes in %rd3.
constexpr char kOwnWord[] = "mul.wide.u32 %rd2, %r1, 8; add.s64 %rd3, %rd1, %rd2;\n";

// Runs an instruction on two values of 64 bits a lane, %rd4 and %rd5, whose lower halves are %r4 and %r5.
void ExpectEach(const std::string& instruction, const std::function<uint64_t(uint64_t, uint64_t)>& expected) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> words(3 * 32);
  for (uint64_t& word : words) word = random() >> (random() % 64);
  const std::vector<uint64_t> before = words;
  const std::string body = std::string(kOwnWord) +
                           "ld.global.u64 %rd4, [%rd3]; ld.global.u64 %rd5, [%rd3+256];\n"
                           "cvt.u32.u64 %r4, %rd4; cvt.u32.u64 %r5, %rd5; mov.u64 %rd6, 0; mov.u32 %r6, 0;\n" +
                           instruction + "\nst.global.u64 [%rd3+512], %rd6;";
  EXPECT_THAT(Texts(RunBody(body, &words)), ::testing::IsEmpty()) << instruction;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(words[64 + lane], expected(before[lane], before[32 + lane]))
        << instruction << " of " << before[lane] << " and " << before[32 + lane];
  }
}
// As ExpectEach, with a result of 32 bits, %r6.
void ExpectEach32(const std::string& instruction, const std::function<uint32_t(uint32_t, uint32_t)>& expected) {
  ExpectEach(instruction + " cvt.u64.u32 %rd6, %r6;",
             [&](uint64_t a, uint64_t b) { return expected(uint32_t(a), uint32_t(b)); });
}

TEST(PtxMachine, IntegersEqualPlainOnes) {
  ExpectEach32("add.s32 %r6, %r4, %r5;", [](uint32_t a, uint32_t b) { return a + b; });
  ExpectEach32("sub.s32 %r6, %r4, -7;", [](uint32_t a, uint32_t) { return a + 7; });
  ExpectEach32("mul.hi.u32 %r6, %r4, %r5;", [](uint32_t a, uint32_t b) { return uint32_t(uint64_t{a} * b >> 32); });
  ExpectEach32("mul.hi.s32 %r6, %r4, %r5;",
               [](uint32_t a, uint32_t b) { return uint32_t(int64_t{int32_t(a)} * int32_t(b) >> 32); });
  ExpectEach("mul.wide.u32 %rd6, %r4, %r5;", [](uint64_t a, uint64_t b) { return (a & ~0u) * (b & ~0u); });
  ExpectEach("mul.lo.s64 %rd6, %rd4, %rd5;", [](uint64_t a, uint64_t b) { return a * b; });
  ExpectEach("mul.hi.u64 %rd6, %rd4, %rd5;",
             [](uint64_t a, uint64_t b) { return uint64_t(static_cast<unsigned __int128>(a) * b >> 64); });
  ExpectEach("min.s64 %rd6, %rd4, %rd5;", [](uint64_t a, uint64_t b) { return std::min(int64_t(a), int64_t(b)); });
  ExpectEach("max.u64 %rd6, %rd4, %rd5;", [](uint64_t a, uint64_t b) { return std::max(a, b); });
  ExpectEach32("div.u32 %r6, %r4, 3;", [](uint32_t a, uint32_t) { return a / 3; });
  ExpectEach32("abs.s32 %r6, %r4;", [](uint32_t a, uint32_t) { return int32_t(a) < 0 ? 0 - a : a; });
  ExpectEach32("mad.lo.s32 %r6, %r4, %r5, 9;", [](uint32_t a, uint32_t b) { return a * b + 9; });
}

TEST(PtxMachine, BitsEqualPlainOnes) {
  ExpectEach("shl.b64 %rd6, %rd4, 70;", [](uint64_t, uint64_t) { return 0; });
  ExpectEach32("shr.s32 %r6, %r4, 40;", [](uint32_t a, uint32_t) { return int32_t(a) < 0 ? ~0u : 0; });
  ExpectEach("shr.u64 %rd6, %rd4, 9;", [](uint64_t a, uint64_t) { return a >> 9; });
  ExpectEach("not.b64 %rd6, %rd4;", [](uint64_t a, uint64_t) { return ~a; });
  ExpectEach32("clz.b32 %r6, %r4;", [](uint32_t a, uint32_t) { return std::countl_zero(a); });
  ExpectEach32("popc.b32 %r6, %r4;", [](uint32_t a, uint32_t) { return std::popcount(a); });
  ExpectEach32("brev.b32 %r6, %r4; brev.b32 %r6, %r6; xor.b32 %r6, %r6, 1;",
               [](uint32_t a, uint32_t) { return a ^ 1; });
  ExpectEach32("bfind.shiftamt.u32 %r6, %r4;", [](uint32_t a, uint32_t) { return a == 0 ? ~0u : std::countl_zero(a); });
  // Bytes 4, 5, 0 and 1 of b:a, the lowest first.
  ExpectEach32("prmt.b32 %r6, %r4, %r5, 4180;", [](uint32_t a, uint32_t b) { return (b & 0xffff) | a << 16; });
  ExpectEach32("shf.l.wrap.b32 %r6, %r4, %r5, 12;", [](uint32_t a, uint32_t b) { return b << 12 | a >> 20; });
  ExpectEach32("bfe.u32 %r6, %r4, 5, 9;", [](uint32_t a, uint32_t) { return a >> 5 & 511; });
  ExpectEach("bfi.b64 %rd6, %rd4, %rd5, 32, 32;", [](uint64_t a, uint64_t b) { return a << 32 | (b & 0xffffffff); });
  ExpectEach("mov.b64 {%r7, %r8}, %rd4; mov.b64 %rd6, {%r8, %r7};",
             [](uint64_t a, uint64_t) { return a << 32 | a >> 32; });
}

TEST(PtxMachine, FloatsEqualPlainOnes) {
  ExpectEach32(
      "mov.b32 %f1, %r4; mov.b32 %f2, %r5; mul.rn.f32 %f3, %f1, %f2; setp.ge.f32 %p1, %f3, %f1;"
      "selp.u32 %r6, 1, 0, %p1;",
      [](uint32_t a, uint32_t b) {
        return std::bit_cast<float>(a) * std::bit_cast<float>(b) >= std::bit_cast<float>(a) ? 1 : 0;
      });
  ExpectEach(
      "cvt.rn.f64.s64 %fd1, %rd4; mov.f64 %fd2, 0d4008000000000000; div.rn.f64 %fd3, %fd1, %fd2;"
      "cvt.rn.f32.f64 %f1, %fd3; mov.b32 %r6, %f1; cvt.u64.u32 %rd6, %r6;",
      [](uint64_t a, uint64_t) { return std::bit_cast<uint32_t>(float(double(int64_t(a)) / 3)); });
  ExpectEach32("mov.b32 %f1, %r4; cvt.rzi.s32.f32 %r6, %f1;", [](uint32_t a, uint32_t) {
    const float f = std::bit_cast<float>(a);
    return f != f ? 0 : uint32_t(int32_t(std::clamp(double(f), -2147483648.0, 2147483647.0)));
  });
  ExpectEach32("cvt.u16.u32 %rs1, %r4; and.b16 %rs1, %rs1, -1025; cvt.f32.f16 %f1, %rs1; mov.b32 %r6, %f1;",
               [](uint32_t a, uint32_t) {
                 const uint32_t h = a & 0xfbff;
                 const int exponent = int(h >> 10 & 31);
                 const float f = std::ldexp(float((h & 1023) + (exponent != 0 ? 1024 : 0)), std::max(exponent, 1) - 25);
                 return std::bit_cast<uint32_t>((h & 0x8000) != 0 ? -f : f) * uint32_t(exponent != 31) +
                        ((h & 0x8000) << 16 | 0x7f800000u | (h & 1023) << 13) * uint32_t(exponent == 31);
               });
}

TEST(PtxMachine, UnknownInstructionFailsByName) {
  std::vector<uint64_t> words(32);
  try {
    RunBody("sqrt.rn.f32 %f1, %f2;", &words);
    FAIL();
  } catch (const Unknown& unknown) {
    EXPECT_THAT(unknown.what(), HasSubstr("instruction sqrt.rn.f32"));
  }
  EXPECT_THROW(RunBody("ld.weak.global.u32 %r4, [%rd1];", &words), Unknown);
  EXPECT_THROW(RunBody("add.s32 %r4, %rd1, 1;", &words), Unknown);
}

// Lane i loops i times. Then the lanes meet again: a shuffle of all of them works.
TEST(PtxMachine, LanesThatPartMeetAgain) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<uint64_t> words(32);
    const std::string body = std::string(kOwnWord) + R"(
      mov.u32 %r4, 0; mov.u32 %r5, %r1;
      Loop: setp.eq.s32 %p1, %r5, 0; @%p1 bra Done;
      add.s32 %r4, %r4, %r5; sub.s32 %r5, %r5, 1; bra.uni Loop;
      Done: mov.u32 %r7, 1; mov.u32 %r8, 31; mov.u32 %r9, -1;
      shfl.sync.bfly.b32 %r6|%p2, %r4, %r7, %r8, %r9;
      cvt.u64.u32 %rd6, %r6; st.global.u64 [%rd3], %rd6;)";
    EXPECT_THAT(Texts(RunBody(body, &words, {.seed = seed})), ::testing::IsEmpty());
    for (uint64_t lane = 0; lane < 32; ++lane) EXPECT_EQ(words[lane], (lane ^ 1) * ((lane ^ 1) + 1) / 2);
  }
}

// Lanes reach one meeting from four places; one split arrives while another one runs.
TEST(PtxMachine, LanesFromManyPlacesMeet) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::vector<uint64_t> words(32);
    const std::string body = std::string(kOwnWord) + R"(
      mov.u32 %r4, -1; and.b32 %r5, %r1, 3; mov.u32 %r7, 0;
      setp.eq.s32 %p1, %r5, 0; @%p1 bra Meet;
      setp.eq.s32 %p2, %r5, 1; @%p2 bra First;
      setp.eq.s32 %p3, %r5, 2; @%p3 bra Second;
      mov.u32 %r7, 3; bra.uni Meet;
      First: mov.u32 %r7, 1; bra.uni Meet;
      Second: mov.u32 %r7, 2;
      Meet: redux.sync.add.u32 %r6, %r7, %r4;
      cvt.u64.u32 %rd6, %r6; st.global.u64 [%rd3], %rd6;)";
    EXPECT_THAT(Texts(RunBody(body, &words, {.seed = seed})), ::testing::IsEmpty());
    EXPECT_EQ(words[7], 48u);
  }
}

// Two halves of a warp meet in different branches, each with its mask.
TEST(PtxMachine, HalvesMeetByTheirMasks) {
  std::vector<uint64_t> words(32);
  const std::string body = std::string(kOwnWord) + R"(
    setp.lt.u32 %p1, %r1, 16; @%p1 bra Low;
    mov.u32 %r4, -65536; redux.sync.add.u32 %r6, %r1, %r4; bra.uni End;
    Low: mov.u32 %r4, 65535; redux.sync.max.u32 %r6, %r1, %r4;
    End: cvt.u64.u32 %rd6, %r6; st.global.u64 [%rd3], %rd6;)";
  EXPECT_THAT(Texts(RunBody(body, &words)), ::testing::IsEmpty());
  EXPECT_EQ(words[0], 15u);
  EXPECT_EQ(words[31], 376u);
}

TEST(PtxMachine, CallsPassParameters) {
  std::vector<uint64_t> words(32);
  const std::string function = R"(
.func (.param .b32 func_retval0) Twice(.param .b32 Twice_param_0)
{ .reg .b32 %r<3>; ld.param.u32 %r1, [Twice_param_0]; add.s32 %r2, %r1, %r1; st.param.b32 [func_retval0+0], %r2; ret; }
)";
  const std::string body = std::string(kOwnWord) + R"(
    { .param .b32 param0; st.param.b32 [param0+0], %r1; .param .b32 retval0;
      call.uni (retval0), Twice, (param0); ld.param.b32 %r6, [retval0+0]; }
    cvt.u64.u32 %rd6, %r6; st.global.u64 [%rd3], %rd6;)";
  EXPECT_THAT(Texts(RunBody(body, &words, {.functions = function})), ::testing::IsEmpty());
  for (uint64_t lane = 0; lane < 32; ++lane) EXPECT_EQ(words[lane], 2 * lane);
}

TEST(PtxMachine, WrongMasksAreReported) {
  std::vector<uint64_t> words(32);
  EXPECT_TRUE(Has(RunBody("redux.sync.add.u32 %r6, %r1, 2147483647;", &words), Finding::kMask));
  const std::string body = R"(
    setp.lt.u32 %p1, %r1, 16; @%p1 bra Low; ret;
    Low: redux.sync.add.u32 %r6, %r1, -1;)";
  EXPECT_TRUE(Has(RunBody(body, &words), Finding::kMask));
}

// Neighbours exchange values by shared memory.
std::string Exchange(const std::string& barrier) {
  return std::string(kOwnWord) +
         "mov.u32 %r3, room; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4; st.shared.u32 [%r5], %r1;\n" + barrier +
         "xor.b32 %r6, %r4, 128; add.s32 %r7, %r3, %r6; ld.shared.u32 %r8, [%r7];\n" +
         "cvt.u64.u32 %rd6, %r8; st.global.u64 [%rd3], %rd6;";
}

TEST(PtxMachine, BarrierOrdersSharedMemory) {
  std::vector<uint64_t> words(64);
  EXPECT_THAT(Texts(RunBody(Exchange("bar.sync 0;\n"), &words, {.threads = 64})), ::testing::IsEmpty());
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(words[i], i ^ 32);
}

TEST(PtxMachine, RaceOnSharedMemoryIsReported) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<uint64_t> words(64);
    const std::vector<Report> reports = RunBody(Exchange(""), &words, {.threads = 64, .seed = seed});
    EXPECT_TRUE(Has(reports, Finding::kRace) || Has(reports, Finding::kUnwritten));
    EXPECT_EQ(reports[0].function, "Test");
    EXPECT_GT(reports[0].line, 10u);
  }
}

TEST(PtxMachine, AtomicsMeetVolatileReadsAlone) {
  const auto clear_bits = [](const std::string& load) {
    std::vector<uint64_t> words(1);
    return RunBody("ld." + load + "global.u32 %r4, [%rd1]; atom.global.and.b32 %r5, [%rd1], %r4;", &words,
                   {.threads = 64});
  };
  EXPECT_THAT(Texts(clear_bits("volatile.")), ::testing::IsEmpty());
  EXPECT_TRUE(Has(clear_bits(""), Finding::kRace));
}

TEST(PtxMachine, MissingThreadsAtBarrierAreReported) {
  std::vector<uint64_t> words(32);
  const std::string body = "setp.eq.s32 %p1, %r1, 3; @%p1 bra End; bar.sync 0; End:";
  EXPECT_TRUE(Has(RunBody(body, &words, {.threads = 64}), Finding::kBarrier));
}

// Two threads write the halves of a word, and others read the whole.
std::string Halves(const std::string& barrier) {
  return std::string(kOwnWord) +
         "mov.u32 %r3, room; shl.b32 %r4, %r1, 1; add.s32 %r5, %r3, %r4; cvt.u16.u32 %rs1, %r1;\n"
         "st.shared.u16 [%r5], %rs1;\n" +
         barrier +
         "xor.b32 %r6, %r1, 32; and.b32 %r6, %r6, 62; shl.b32 %r6, %r6, 1; add.s32 %r7, %r3, %r6;\n"
         "ld.shared.u32 %r8, [%r7]; cvt.u64.u32 %rd6, %r8; st.global.u64 [%rd3], %rd6;";
}

TEST(PtxMachine, HalvesOfWordsAreApart) {
  std::vector<uint64_t> words(64);
  EXPECT_THAT(Texts(RunBody(Halves("bar.sync 0;\n"), &words, {.threads = 64})), ::testing::IsEmpty());
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(words[i], ((i ^ 32) & 62) * 0x10001 + 0x10000);
  const std::vector<Report> reports = RunBody(Halves(""), &words, {.threads = 64});
  EXPECT_TRUE(Has(reports, Finding::kRace) || Has(reports, Finding::kUnwritten));
}

TEST(PtxMachine, RaceOnGlobalMemoryIsReported) {
  std::vector<uint64_t> words(64);
  const std::string body = "cvt.u64.u32 %rd2, %r1; st.global.u64 [%rd1], %rd2;";
  const std::vector<Report> reports = RunBody(body, &words, {.threads = 64});
  ASSERT_TRUE(Has(reports, Finding::kRace));
  EXPECT_THAT(reports[0].detail, HasSubstr("global memory: a write is not ordered after a write of block 0"));
}

// Local memory of 16 bytes, from %rd4 in its space and from %rd5 in general.
constexpr char kLocal[] = ".local .align 8 .b8 depot[16]; mov.u64 %rd4, depot; cvta.local.u64 %rd5, %rd4;";

TEST(PtxMachine, AccessOutOfBoundsIsReported) {
  std::vector<uint64_t> words(31);
  EXPECT_TRUE(Has(RunBody(std::string(kOwnWord) + "st.global.u64 [%rd3], %rd3;", &words), Finding::kOutOfBounds));
  EXPECT_TRUE(Has(RunBody("ld.shared.u32 %r4, [room+1024];", &words), Finding::kOutOfBounds));
  EXPECT_TRUE(Has(RunBody(std::string(kLocal) + "st.u32 [%rd5+16], %r1;", &words), Finding::kOutOfBounds));
}

TEST(PtxMachine, MisalignedAccessIsReported) {
  std::vector<uint64_t> words(31);
  EXPECT_TRUE(Has(RunBody("ld.global.u64 %rd4, [%rd1+4];", &words), Finding::kMisaligned));
  EXPECT_TRUE(Has(RunBody("st.shared.u32 [room+2], %r1;", &words), Finding::kMisaligned));
}

TEST(PtxMachine, UnwrittenReadIsReported) {
  std::vector<uint64_t> words(31);
  EXPECT_TRUE(Has(RunBody("ld.shared.u32 %r4, [room];", &words), Finding::kUnwritten));
  EXPECT_TRUE(Has(RunBody("ld.global.u32 %r4, [%rd1];", &words, {.is_written = false}), Finding::kUnwritten));
  EXPECT_TRUE(Has(RunBody(std::string(kLocal) + "ld.u32 %r4, [%rd5+8];", &words), Finding::kUnwritten));
  EXPECT_THAT(Texts(RunBody(std::string(kLocal) + "st.local.u32 [%rd4+8], %r1; ld.u32 %r4, [%rd5+8];", &words)),
              ::testing::IsEmpty());
}

// A block does not see the shared memory of the block before it.
TEST(PtxMachine, SharedMemoryBeginsUnwritten) {
  std::vector<uint64_t> words(1);
  const std::string body =
      "setp.ne.u32 %p1, %r2, 0; @%p1 bra Read; st.shared.u32 [room], %r1; Read: "
      "ld.shared.u32 %r4, [room];";
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_TRUE(Has(RunBody(body, &words, {.blocks = 2, .seed = seed}), Finding::kUnwritten));
  }
}

// Tables are aligned to sectors wherever the host put the module.
TEST(PtxMachine, TablesBeginWhereSectorsDo) {
  std::vector<uint64_t> words(32);
  std::vector<Count> counts;
  const std::string tables =
      ".global .align 4 .b8 pad[4] = {1};\n.global .align 4 .b8 first[128] = {7};\n.global .align 4 .b8 last[128];\n";
  const std::string body =
      "shl.b32 %r3, %r1, 2; cvt.u64.u32 %rd2, %r3; mov.u64 %rd4, first; add.s64 %rd5, %rd4, %rd2;\n"
      "ld.global.nc.u32 %r4, [%rd5]; mov.u64 %rd6, last; add.s64 %rd7, %rd6, %rd2; ld.global.nc.u32 %r5, [%rd7];";
  EXPECT_THAT(Texts(RunBody(body, &words, {.functions = tables, .counts = &counts})), ::testing::IsEmpty());
  uint64_t sectors = 0;
  for (const Count& count : counts) sectors += count.table_sectors;
  EXPECT_EQ(sectors, 2u * 128 / 32);
}

TEST(PtxMachine, EndlessLoopIsReported) {
  std::vector<uint64_t> words(1);
  EXPECT_TRUE(Has(RunBody("Loop: bra.uni Loop;", &words), Finding::kStuck));
}

// A block leaves a word for the one that arrives last. `before` and `after` stand around its arrival.
std::string Arrive(const std::string& before, const std::string& after) {
  return "mul.wide.u32 %rd2, %r2, 8; add.s64 %rd3, %rd1, %rd2; setp.ne.s32 %p1, %r1, 0; @%p1 bra End;\n"
         "cvt.u64.u32 %rd4, %r2; st.global.u64 [%rd3+8], %rd4;\n" +
         before + "atom.global.add.u32 %r4, [%rd1], 1;\n" + after +
         "setp.ne.s32 %p2, %r4, 2; @%p2 bra End;\n"
         "ld.global.u64 %rd5, [%rd1+8]; ld.global.u64 %rd6, [%rd1+16]; ld.global.u64 %rd7, [%rd1+24];\nEnd:";
}

TEST(PtxMachine, FencesOrderBlocks) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<uint64_t> words(4);
    const Options options = {.blocks = 3, .seed = seed};
    EXPECT_THAT(Texts(RunBody(Arrive("membar.gl;", "membar.gl;"), &words, options)), ::testing::IsEmpty());
    words.assign(4, 0);
    EXPECT_TRUE(Has(RunBody(Arrive("", "membar.gl;"), &words, options), Finding::kRace));
    words.assign(4, 0);
    EXPECT_TRUE(Has(RunBody(Arrive("membar.gl;", ""), &words, options), Finding::kRace));
  }
}

// The model of time (cycles.h): what is beyond an empty body.
TEST(PtxMachine, BlocksTakeLatenciesPipesAndBarriers) {
  const auto cycles = [](const std::string& body, uint32_t threads = 32) {
    std::vector<uint64_t> words(threads);
    std::vector<uint64_t> blocks;
    const std::vector<Report> reports =
        RunBody(std::string(kOwnWord) + body, &words, {.blocks = 2, .threads = threads, .block_cycles = &blocks});
    EXPECT_THAT(Texts(reports), ::testing::IsEmpty());
    EXPECT_EQ(blocks.size(), 2u);
    EXPECT_EQ(blocks.at(0), blocks.at(1)) << "each has its own clock";
    return int64_t(blocks.at(0));
  };
  const int64_t none = cycles("");
  EXPECT_EQ(cycles("add.s32 %r4, %r1, 1; add.s32 %r5, %r1, 2;\n") - none, 4) << "the pipe takes a warp for two cycles";
  const int64_t apart = cycles("add.s32 %r4, %r1, 1; add.s32 %r5, %r1, 2; add.s32 %r6, %r1, 3;\n");
  const int64_t chained = cycles("add.s32 %r4, %r1, 1; add.s32 %r5, %r4, 2; add.s32 %r6, %r5, 3;\n");
  EXPECT_EQ(chained - apart, 2 * (5 - 2)) << "the second and the third wait for the result before them";
  const int64_t loaded = cycles("ld.global.u64 %rd4, [%rd3]; add.s64 %rd5, %rd4, 1;\n");
  EXPECT_GT(loaded - none, 250);
  EXPECT_LT(cycles("ld.global.u64 %rd4, [%rd3];\n") - none, 100) << "nothing waits for it";
  // All warps leave a barrier with the last one.
  const std::string late = "setp.ge.u32 %p1, %r1, 32; @%p1 bra Done;\n";
  const std::string work = "ld.global.u64 %rd4, [%rd3]; add.s64 %rd5, %rd4, 1;\nDone:\n";
  const int64_t without = cycles(late + work, 64);
  EXPECT_GE(cycles(late + work + "bar.sync 0; bar.sync 0;\n", 64) - without, 2 * int64_t(kBarrierCycles));
}

}  // namespace
}  // namespace sortition::testing::ptx::machine_test

// Quotas and rates of clients.
#include "service/client_accounts.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

Refusal Beyond(std::string field, const Bound& limit, absl::Duration retry_after) {
  return {Reason::kClientLimit, std::move(field), limit.Text(), "one client may have no more", retry_after};
}

}  // namespace

void ClientAccount::Allowance::Refill(absl::Time now) {
  const double most = static_cast<double>(rate);
  left = at == absl::InfinitePast() ? most : std::min(most, left + absl::ToDoubleSeconds(now - at) * most);
  at = now;
}

absl::Duration ClientAccount::Allowance::UntilPositive() const {
  // Rounded up, so that a retry at that time is served.
  return absl::Seconds(-left / static_cast<double>(rate)) + absl::Milliseconds(1);
}

ClientAccount::ClientAccount(std::string identity, const Limits& limits, const Clock* clock)
    : identity_(std::move(identity)), limits_(limits), clock_(*clock) {
  rows_.rate = limits.client_rows_per_second;
  bytes_.rate = limits.client_bytes_per_second;
  work_.rate = limits.client_work_per_second;
}

std::optional<Refusal> ClientAccount::TakeStream() {
  absl::MutexLock lock(&mutex_);
  const Bound most = Bounds(limits_).client_streams();
  if (most.value != 0 && use_.streams >= most.value) return Beyond("stream", most, kRetryAfter);
  ++use_.streams;
  return std::nullopt;
}

void ClientAccount::GiveBackStream() {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(use_.streams > 0);
  --use_.streams;
}

std::optional<Refusal> ClientAccount::TakeRegion(uint64_t bytes, const std::string& field) {
  absl::MutexLock lock(&mutex_);
  const Bounds bounds(limits_);
  if (const Bound most = bounds.client_regions(); most.value != 0 && use_.regions >= most.value) {
    return Beyond(field, most, kRetryAfter);
  }
  if (const Bound most = bounds.client_memory_bytes();
      most.value != 0 && (bytes > most.value || use_.memory_bytes > most.value - bytes)) {
    return Beyond(field, most, kRetryAfter);
  }
  ++use_.regions;
  use_.memory_bytes += bytes;
  return std::nullopt;
}

void ClientAccount::GiveBackRegion(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(use_.regions > 0 && use_.memory_bytes >= bytes);
  --use_.regions;
  use_.memory_bytes -= bytes;
}

bool ClientAccount::HasRoomForMessage() const {
  const uint64_t arriving = arriving_bytes_.load(std::memory_order_relaxed);
  return received_bytes_.load(std::memory_order_relaxed) + arriving < limits_.client_received_bytes;
}

void ClientAccount::GiveBackMessage(uint64_t bytes) {
  const uint64_t before = received_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  SORTITION_CHECK(before >= bytes);
}

std::optional<Refusal> ClientAccount::CheckRoomForCall() const {
  if (received_bytes_.load(std::memory_order_relaxed) < limits_.client_received_bytes / 2) return std::nullopt;
  return Beyond("message", Bounds(limits_).client_received_bytes(), kRetryAfter);
}

bool ClientAccount::MayReceive(const void* connection, absl::Time now) {
  const uint64_t arriving = arriving_bytes_.load(std::memory_order_relaxed);
  if (received_bytes_.load(std::memory_order_relaxed) + arriving < limits_.client_received_bytes / 2) return true;
  absl::MutexLock lock(&mutex_);
  const bool is_over = turn_ == nullptr || now >= turn_end_;
  if (turn_ != connection && !is_over) {
    turn_is_awaited_ = true;
    return false;
  }
  if (turn_ == connection && !is_over) return true;
  // A turn that is over passes to the next that asks.
  if (turn_ == connection && turn_is_awaited_) {
    turn_ = nullptr;
    return false;
  }
  turn_ = connection;
  turn_end_ = now + kTurn;
  turn_is_awaited_ = false;
  return true;
}

void ClientAccount::EndTurn(const void* connection) {
  absl::MutexLock lock(&mutex_);
  if (turn_ == connection) turn_ = nullptr;
}

bool ClientAccount::HasRoomToArrive() const {
  const uint64_t held = received_bytes_.load(std::memory_order_relaxed);
  const uint64_t quarter = limits_.client_received_bytes / 4;
  const uint64_t least = quarter + most_read_bytes();
  const uint64_t most = held < 2 * quarter ? std::max(3 * quarter - held, least) : least;
  return arriving_bytes_.load(std::memory_order_relaxed) <= most;
}

Refusal ClientAccount::GivenUp() const {
  return Beyond("message", Bounds(limits_).client_received_bytes(), kRetryAfter);
}

bool ClientAccount::HasRoomForAnswer() const {
  return answer_bytes_.load(std::memory_order_relaxed) < limits_.client_answer_bytes;
}

std::optional<Refusal> ClientAccount::TakeAnswer(uint64_t bytes) {
  if (!HasRoomForAnswer()) return Beyond("answer", Bounds(limits_).client_answer_bytes(), kRetryAfter);
  HoldAnswer(bytes);
  return std::nullopt;
}

void ClientAccount::GiveBackAnswer(uint64_t bytes) {
  const uint64_t before = answer_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  SORTITION_CHECK(before >= bytes);
}

std::optional<Refusal> ClientAccount::Charge(uint32_t rows, uint64_t bytes, const char* field) {
  const Bounds bounds(limits_);
  const std::pair<Allowance*, Bound> rates[] = {{&rows_, bounds.client_rows_per_second()},
                                                {&bytes_, bounds.client_bytes_per_second()},
                                                {&work_, bounds.client_work_per_second()}};
  if (std::ranges::all_of(rates, [](const auto& rate) { return rate.second.value == 0; })) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  for (const auto& [allowance, bound] : rates) {
    if (bound.value == 0) continue;
    allowance->Refill(now);
    if (allowance->left <= 0) return Beyond(field, bound, allowance->UntilPositive());
  }
  rows_.left -= rows;
  bytes_.left -= static_cast<double>(bytes);
  return std::nullopt;
}

void ClientAccount::Spend(uint64_t work) {
  if (limits_.client_work_per_second == 0) return;
  absl::MutexLock lock(&mutex_);
  work_.Refill(clock_.Now());
  work_.left -= static_cast<double>(work);
}

ClientAccount::Use ClientAccount::use() const {
  absl::MutexLock lock(&mutex_);
  return use_;
}

bool ClientAccount::settled() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  for (Allowance* allowance : {&rows_, &bytes_, &work_}) {
    if (allowance->rate == 0) continue;
    allowance->Refill(now);
    if (allowance->left < static_cast<double>(allowance->rate)) return false;
  }
  return true;
}

ClientStream& ClientStream::operator=(ClientStream&& other) noexcept {
  std::swap(account_, other.account_);
  return *this;
}

ClientStream::~ClientStream() {
  if (account_ != nullptr) account_->GiveBackStream();
}

ClientAccounts::ClientAccounts(const Limits& limits, const Clock* clock) : limits_(limits), clock_(*clock) {}

std::shared_ptr<ClientAccount> ClientAccounts::FindOrAdd(const std::string& identity) {
  std::shared_ptr<ClientAccount>& account = accounts_[identity];
  if (account == nullptr) account = std::make_shared<ClientAccount>(identity, limits_, &clock_);
  return account;
}

std::variant<std::shared_ptr<ClientAccount>, Refusal> ClientAccounts::Enter(const std::string& identity) {
  absl::MutexLock lock(&mutex_);
  if (!accounts_.contains(identity) && accounts_.size() >= limits_.max_clients) {
    // Only this table, whose lock is held, can give out another reference to the account.
    absl::erase_if(accounts_,
                   [](const auto& entry) { return entry.second.use_count() == 1 && entry.second->settled(); });
    if (accounts_.size() >= limits_.max_clients) {
      return Refusal{Reason::kOverloaded, "identity", Bounds(limits_).max_clients().Text(),
                     "as many clients are connected as there may be", kRetryAfter};
    }
  }
  return FindOrAdd(identity);
}

std::variant<ClientStream, Refusal> ClientAccounts::OpenStream(const std::string& identity) {
  auto entered = Enter(identity);
  if (auto* refusal = std::get_if<Refusal>(&entered)) return std::move(*refusal);
  auto& account = std::get<std::shared_ptr<ClientAccount>>(entered);
  if (auto refusal = account->TakeStream()) return *std::move(refusal);
  return ClientStream(std::move(account));
}

std::shared_ptr<ClientAccount> ClientAccounts::Of(const std::string& identity) {
  absl::MutexLock lock(&mutex_);
  return FindOrAdd(identity);
}

std::vector<std::shared_ptr<const ClientAccount>> ClientAccounts::all() const {
  std::vector<std::shared_ptr<const ClientAccount>> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [identity, account] : accounts_) {
      if (account.use_count() > 1) all.push_back(account);
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->identity() < b->identity(); });
  return all;
}

}  // namespace sortition::service

// A queue of events is read by callers that wait for their own, or by the queue's thread for others.
#include "client/cpp/transport/event_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace sortition::client::event_queue_test {
namespace {

// An event, and the thread that has run it.
struct Event {
  std::thread::id reader;
  absl::Notification over;
  std::function<void()> then = [] {};
  grpc::Alarm alarm;

  void Come(EventQueue* queue, absl::Duration after = absl::ZeroDuration()) {
    alarm.Set(queue->get(), absl::ToChronoTime(absl::Now() + after), this);
  }
  bool is_over() const { return over.HasBeenNotified(); }
};

class EventQueueTest : public ::testing::Test {
 protected:
  ~EventQueueTest() override { queue_.Stop(); }
  void Read(Event* event) {
    queue_.Poll([event] { return event->is_over(); }, [this] { return awaited_.load(); });
  }

  std::atomic<bool> awaited_ = false;
  EventQueue queue_{[](void* tag, bool) {
    auto* event = static_cast<Event*>(tag);
    event->reader = std::this_thread::get_id();
    event->then();
    event->over.Notify();
  }};
};

TEST_F(EventQueueTest, ThreadReadsForThoseWhoDoNot) {
  Event event;
  event.Come(&queue_);
  event.over.WaitForNotification();
  EXPECT_NE(event.reader, std::this_thread::get_id());
}

TEST_F(EventQueueTest, CallerReadsItsOwnEvent) {
  for (int i = 0; i < 100; ++i) {
    Event event;
    queue_.Expect();
    event.Come(&queue_, absl::Milliseconds(i % 3));
    Read(&event);
    ASSERT_TRUE(event.is_over());
    // The thread may still have been there the first time.
    EXPECT_TRUE(i == 0 || event.reader == std::this_thread::get_id());
  }
}

TEST_F(EventQueueTest, ThreadComesBackForThoseWhoStillWait) {
  Event own;
  queue_.Expect();
  own.Come(&queue_);
  awaited_ = true;
  Read(&own);
  Event other;
  const absl::Time start = absl::Now();
  other.Come(&queue_);
  other.over.WaitForNotification();
  EXPECT_NE(other.reader, std::this_thread::get_id());
  EXPECT_LT(absl::Now() - start, EventQueue::kLinger);
}

TEST_F(EventQueueTest, ThreadComesBackWhenAskedAndAfterAWhile) {
  for (const bool asks : {true, false}) {
    Event own;
    queue_.Expect();
    own.Come(&queue_);
    Read(&own);
    Event other;
    other.Come(&queue_);
    if (asks) queue_.Attend();
    other.over.WaitForNotification();
    EXPECT_NE(other.reader, std::this_thread::get_id());
  }
}

TEST_F(EventQueueTest, CallersReadForEachOther) {
  constexpr int kCallers = 4;
  constexpr int kEvents = 200;
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([this, i] {
      for (int k = 0; k < kEvents; ++k) {
        Event event;
        queue_.Expect();
        event.Come(&queue_, absl::Microseconds(100 * ((k + i) % 5)));
        Read(&event);
        ASSERT_TRUE(event.is_over());
      }
    });
  }
  // Others use the thread meanwhile.
  for (int k = 0; k < kEvents; ++k) {
    Event event;
    event.Come(&queue_);
    queue_.Attend();
    event.over.WaitForNotification();
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(EventQueueTest, CallerSeesWhatOtherThreadsDo) {
  absl::Notification reads;
  absl::Notification done;
  std::thread other([&] {
    reads.WaitForNotification();
    done.Notify();
  });
  int looks = 0;
  const auto look = [&] {
    if (++looks == 10) reads.Notify();
    return done.HasBeenNotified();
  };
  queue_.Poll(look, [] { return false; });
  EXPECT_TRUE(done.HasBeenNotified());
  other.join();
}

TEST(EventQueueStopTest, NobodyReadsAfterIt) {
  EventQueue queue([](void*, bool) {});
  queue.Stop();
  queue.Attend();
  queue.Expect();
  queue.Poll([] { return false; }, [] { return false; });
}

}  // namespace
}  // namespace sortition::client::event_queue_test

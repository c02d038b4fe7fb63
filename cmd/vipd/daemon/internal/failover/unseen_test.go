package failover

import (
	"slices"
	"testing"
	"time"

	"vipd/cmd/internal/api"
)

// TestUnseenEvents reads the events of vipd owner. Each must be returned once, even if the clock
// steps back or a restarted owner numbers its events from 1.
func TestUnseenEvents(t *testing.T) {
	reporter := New(Options{})
	began := time.Now()
	event := func(number int, after time.Duration) api.OwnerEvent {
		return api.OwnerEvent{Number: number, Time: began.Add(after)}
	}
	for _, answer := range []struct{ all, want []api.OwnerEvent }{
		{nil, nil},
		{[]api.OwnerEvent{event(1, -time.Minute), event(2, time.Second)}, []api.OwnerEvent{event(2, time.Second)}},
		{[]api.OwnerEvent{event(2, time.Second), event(3, -time.Hour)}, []api.OwnerEvent{event(3, -time.Hour)}},
		{[]api.OwnerEvent{event(2, time.Second), event(3, -time.Hour)}, nil},
		{[]api.OwnerEvent{event(3, -time.Hour), event(4, -time.Hour)}, []api.OwnerEvent{event(4, -time.Hour)}},
		{[]api.OwnerEvent{event(1, time.Minute)}, []api.OwnerEvent{event(1, time.Minute)}},
	} {
		if got := reporter.unseen(answer.all); !slices.Equal(got, answer.want) {
			t.Errorf("unseen(%v) = %v, want %v", answer.all, got, answer.want)
		}
	}
}

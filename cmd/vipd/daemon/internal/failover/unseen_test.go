package failover

import (
	"slices"
	"testing"
	"time"

	"vipd/cmd/internal/api"
)

// TestUnseen: each event of the owner is new once, also where the clock steps back, and where another owner counts anew.
func TestUnseen(t *testing.T) {
	teller := New(Options{})
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
		if got := teller.unseen(answer.all); !slices.Equal(got, answer.want) {
			t.Errorf("of %v these are new: %v, want %v", answer.all, got, answer.want)
		}
	}
}

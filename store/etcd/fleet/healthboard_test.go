package fleet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer/health/quorum"
	"vipd/store/etcd/client"
)

// TestBoardIsRead reads a large board slowly, page by page. As long as pages arrive, the slow read
// must not count as an outage.
func TestBoardIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		updates := make(chan bool, 16)
		h := &HealthBoard{options: BoardOptions{Patience: boardPatience}, timing: client.UsualTiming()}
		w := boardWatch{HealthBoard: h, publish: func(b quorum.Board, _ error) { updates <- b.Connected }, lost: h.timing.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		messages, done := make(chan client.Message), make(chan struct{})
		go func() { defer close(done); w.loop(ctx, messages) }()
		messages <- client.Message{Begin: true}
		for range 20 {
			time.Sleep(time.Second)
			messages <- client.Message{Page: []*mvccpb.KeyValue{}}
		}
		if len(updates) > 0 {
			t.Errorf("update while pages arrive = connected %t, want no update", <-updates)
		}
		time.Sleep(2 * boardPatience)
		if synctest.Wait(); len(updates) != 1 || <-updates {
			t.Error("the update after the last page is missing or connected, want one that is not connected")
		}
		cancel()
		<-done
	})
}

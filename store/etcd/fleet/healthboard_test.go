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

// TestBoardIsRead: a board that takes long to read is no etcd that is away; one of which no more comes is.
func TestBoardIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan bool, 16)
		h := &HealthBoard{options: BoardOptions{Patience: boardPatience}, timing: client.UsualTiming()}
		w := boardWatch{HealthBoard: h, publish: func(b quorum.Board, _ error) { told <- b.Connected }, lost: h.timing.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		messages, done := make(chan client.Message), make(chan struct{})
		go func() { defer close(done); w.loop(ctx, messages) }()
		messages <- client.Message{Begin: true}
		for range 20 {
			time.Sleep(time.Second)
			messages <- client.Message{Page: []*mvccpb.KeyValue{}}
		}
		if len(told) > 0 {
			t.Errorf("while the board was read it was told, connected: %t", <-told)
		}
		time.Sleep(2 * boardPatience)
		if synctest.Wait(); len(told) != 1 || <-told {
			t.Error("that no page comes any more is not told")
		}
		cancel()
		<-done
	})
}

package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLoop creates a Loop for a function that returns the time of its next call. The Loop must call
// the function after each call to Look, and at each time that the function returned.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		calls := make(chan time.Duration, 100)
		var again atomic.Int64
		l := New(func(context.Context) time.Time {
			calls <- time.Since(began)
			if pause := time.Duration(again.Load()); pause > 0 {
				return time.Now().Add(pause)
			}
			return time.Time{}
		})
		defer l.Close()
		want := func(all ...time.Duration) {
			t.Helper()
			synctest.Wait()
			var got []time.Duration
			for len(calls) > 0 {
				got = append(got, <-calls)
			}
			if !slices.Equal(got, all) {
				t.Fatalf("call times = %v, want %v", got, all)
			}
		}
		time.Sleep(time.Hour)
		want()
		l.Look()
		want(time.Hour)
		time.Sleep(time.Hour)
		want()

		again.Store(int64(time.Minute))
		l.Look()
		want(2 * time.Hour)
		time.Sleep(90 * time.Second)
		l.Look() // the next call must be a minute after this call, not after the previous call
		want(2*time.Hour+time.Minute, 2*time.Hour+90*time.Second)
		time.Sleep(59 * time.Second)
		want()
		again.Store(0)
		time.Sleep(time.Hour)
		want(2*time.Hour + 150*time.Second)
	})
}

// TestClose closes a Loop during a call to its function. The call's context must be canceled, and
// Close must wait for the call. The function must not be called again.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, ends atomic.Int64
		l := New(func(ctx context.Context) time.Time {
			calls.Add(1)
			<-ctx.Done()
			time.Sleep(time.Second)
			ends.Add(1)
			return time.Now()
		})
		l.Look()
		synctest.Wait()
		l.Look()
		l.Close()
		if ends.Load() != 1 {
			t.Error("after Close: completed calls = 0, want 1")
		}
		l.Look()
		l.Close()
		if synctest.Wait(); calls.Load() != 1 {
			t.Errorf("calls after Close = %d, want 1 as before", calls.Load())
		}
	})
}

// TestNeverLooked closes a Loop on which Look was never called. Close must return, and the function
// must not be called.
func TestNeverLooked(t *testing.T) {
	l := New(func(context.Context) time.Time { t.Error("calls = 1, want 0"); return time.Time{} })
	l.Close()
	l.Look()
	l.Close()
}

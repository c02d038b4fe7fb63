package netlock

import (
	"context"
	"errors"
	"os"
	"testing"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestHolder acquires the lock again while it is held. The error must name the holder, even if the
// holder does not answer. After the holder has closed the lock, Acquire must succeed.
func TestHolder(t *testing.T) {
	lab.New(t) // gives this test its own network namespace
	first, err := Acquire(Holder{Config: "/etc/vipd/vipd.toml", RunDir: "/run/vipd"})
	if err != nil {
		t.Fatal(err)
	}
	want := Holder{PID: os.Getpid(), Program: "netlock.test"}
	var held *HeldError
	if _, err := Acquire(Holder{}); !errors.As(err, &held) || held.Holder != want {
		t.Errorf("holder does not answer: error = %v, want a HeldError with the process but without its files", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- first.Run(ctx) }()
	want.Config, want.RunDir = "/etc/vipd/vipd.toml", "/run/vipd"
	if _, err := Acquire(Holder{}); !errors.As(err, &held) || held.Holder != want {
		t.Errorf("error = %v, want a HeldError with the holder %v", err, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := Acquire(Holder{})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

package netlock

import (
	"context"
	"errors"
	"os"
	"testing"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestHolder makes a second process request the lock. It must learn the holder, even if the holder
// does not answer, and must get the lock when the holder ends.
func TestHolder(t *testing.T) {
	lab.New(t) // its own network namespace
	first, err := Acquire(Holder{Config: "/etc/vipd/vipd.toml", RunDir: "/run/vipd"})
	if err != nil {
		t.Fatal(err)
	}
	want := Holder{PID: os.Getpid(), Program: "netlock.test"}
	var held *HeldError
	if _, err := Acquire(Holder{}); !errors.As(err, &held) || held.Holder != want {
		t.Errorf("the holder does not answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- first.Run(ctx) }()
	want.Config, want.RunDir = "/etc/vipd/vipd.toml", "/run/vipd"
	if _, err := Acquire(Holder{}); !errors.As(err, &held) || held.Holder != want {
		t.Errorf("got %v, want %v", err, want)
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

package client

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPlain converts the errors that gRPC returns if members hang or are down. The results must be
// in plain words.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		`connection error: desc = "error reading server preface: raw-read tcp 127.0.0.1:37834->127.0.0.1:2379: use of closed network connection"`: "no answer in time",
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                            "dial tcp 127.0.0.1:1: connect: connection refused",
	} {
		if got := Plain(status.Error(codes.Unavailable, text)).Error(); got != want {
			t.Errorf("Plain(%s) =\n%s\nwant %s", text, got, want)
		}
	}
}

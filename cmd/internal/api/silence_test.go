package api

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"vipd/dataplane"
)

// TestSlowReader reads an answer slowly. The reader's pauses must not count as the daemon's
// silence.
func TestSlowReader(t *testing.T) {
	parts := []string{"[{}\n", ",{}\n", "]\n"}
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() {
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
				t.Error(err)
			}
			_, _ = fmt.Fprint(theirs, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for _, part := range parts {
				_, _ = fmt.Fprintf(theirs, "%x\r\n%s\r\n", len(part), part)
			}
			_, _ = fmt.Fprint(theirs, "0\r\n\r\n")
		}()
		c := NewClient("d.sock")
		c.http.Transport = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return ours, nil }}
		defer c.Close()
		listed := 0
		err := c.EachConnection(t.Context(), dataplane.ConnectionQuery{}, func(Connection) error {
			time.Sleep(time.Hour)
			listed++
			return nil
		})
		if err != nil || listed != 2 {
			t.Errorf("connections = %d, error = %v; want 2 and no error", listed, err)
		}
	})
}

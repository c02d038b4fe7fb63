package ipvs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"vipd/dataplane/internal/ipvsnl"
)

// conntrackTimeout is the file with conntrack's timeout of open TCP connections in seconds.
const conntrackTimeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"

// trackedTimeout returns conntrack's timeout of open TCP connections. It returns 0 if conntrack has
// no such timeout. It also returns 0 if the host may have foreign virtual servers, because all
// virtual servers share their timeouts. Foreign virtual servers are those that the ledger in runDir
// does not name.
func trackedTimeout(ctx context.Context, runDir string) time.Duration {
	text, err := os.ReadFile(conntrackTimeout)
	if err != nil {
		return 0
	}
	seconds, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0
	}
	if foreign, err := HasForeign(ctx, runDir); foreign || err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// TCPTimeout returns how long the kernel remembers open TCP connections to virtual servers without
// packets. It may load IPVS.
func TCPTimeout(ctx context.Context) (time.Duration, error) {
	conn, err := ipvsnl.Open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	t, err := conn.Timeouts(ctx)
	return t.TCP, errors.Join(err, conn.Close())
}

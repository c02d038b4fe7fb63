package owner

import (
	"log/slog"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
	"vipd/cmd/internal/api"
	"vipd/store/etcd/client"
)

// etcdState records whether etcd is reached and accepts writes.
type etcdState struct {
	log  *slog.Logger
	away atomic.Pointer[timedError]
	// refused is the last write that etcd refused. It is nil after a later write has succeeded.
	refused atomic.Pointer[timedError]
}

// timedError is an error and when it occurred: the start of an outage, or the last refusal.
type timedError struct {
	err error
	at  time.Time
}

// reported records the result of a request to etcd. err is nil if etcd was reached.
func (s *etcdState) reported(err error) {
	before := s.away.Load()
	switch {
	case err == nil:
		s.away.Store(nil)
	case before == nil:
		s.away.Store(&timedError{err, time.Now()})
		s.log.Warn("etcd is unreachable: no VIP can move", "err", err)
	default:
		s.away.Store(&timedError{err, before.at})
	}
}

// wrote records the result of a write.
func (s *etcdState) wrote(outcome failover.Outcome, err error) {
	switch {
	case err == nil:
		s.refused.Store(nil)
	case outcome == failover.Unsent && s.away.Load() == nil:
		if before := s.refused.Swap(&timedError{err, time.Now()}); before == nil {
			s.log.Error("etcd accepts no writes: VIPs stay where they are", "err", err)
		}
	default:
		s.log.Debug("can't write to etcd", "err", err)
	}
}

// refusalKept is how long a refusal counts as a problem. After that, no write is pending.
const refusalKept = time.Minute

// describe adds the state to a status.
func (s *etcdState) describe(status *api.OwnerStatus) {
	if away := s.away.Load(); away != nil {
		status.Etcd, status.EtcdAway = client.Advised(away.err).Error(), time.Since(away.at).Seconds()
		if status.Session == "" {
			status.Problems = append(status.Problems, "this host can't own VIPs, because it has no session in etcd: "+status.Etcd)
		}
	}
	if r := s.refused.Load(); r != nil && time.Since(r.at) < refusalKept {
		status.Problems = append(status.Problems, "VIPs stay where they are, even if their host has died, because etcd accepts no writes: "+client.Advised(r.err).Error())
	}
}

package owner

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/failover/heartbeat"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestReplayedHeartbeats cuts the power of an owner, while a client replays the owner's last
// heartbeats to the other hosts. One of the other hosts must nevertheless take over the VIP.
func TestReplayedHeartbeats(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	dead := f.waitForOwner()
	p := f.probe()
	last := f.record(dead)
	time.Sleep(200 * time.Millisecond) // wait for a few heartbeats
	powerOff.fault(dead)
	died := time.Now()
	replays := last()
	if len(replays) != 2 {
		t.Fatalf("hosts to which heartbeats were recorded = %d, want 2", len(replays))
	}
	stop := f.replay(replays)
	wait.For(t, wait.Patience, "another owner in spite of replays", func() bool { o := f.owner(); return o != nil && o != dead })
	t.Logf("another owner after %s", time.Since(died).Round(time.Millisecond))
	f.answers(vip, vip6)
	f.judge(p, "power-off with replays")
	stop()
}

// record records the heartbeats that a host sends to all other hosts. The function last returns the
// last heartbeat to each address.
func (f *fleet) record(from *gateway) (last func() map[netip.AddrPort][]byte) {
	f.t.Helper()
	var mu sync.Mutex
	all, ends := map[netip.AddrPort][]byte{}, []func() error{}
	source := netip.AddrFrom4([4]byte{10, 9, 0, byte(11 + slices.Index(f.hosts, from))})
	var reading sync.WaitGroup
	for _, g := range slices.DeleteFunc(slices.Clone(f.hosts), func(g *gateway) bool { return g == from }) {
		if err := g.ns.Do(func() error {
			device, err := net.InterfaceByName("lan")
			if err != nil {
				return err
			}
			frames, err := packets(device.Index, vip)
			if err != nil {
				return err
			}
			ends = append(ends, frames.Close)
			reading.Go(func() {
				b := make([]byte, 2000)
				for n, err := frames.Read(b); err == nil; n, err = frames.Read(b) {
					if to, payload := sentBy(source, b[:n]); payload != nil {
						mu.Lock()
						all[to] = slices.Clone(payload)
						mu.Unlock()
					}
				}
			})
			return nil
		}); err != nil {
			f.t.Fatal(err)
		}
	}
	return func() map[netip.AddrPort][]byte {
		for _, end := range ends {
			_ = end() // the socket was only used for reading
		}
		reading.Wait()
		return all
	}
}

// sentBy returns the payload and the destination of a frame if the frame is a heartbeat from source
// that is not an answer.
func sentBy(source netip.Addr, frame []byte) (to netip.AddrPort, payload []byte) {
	const ethernet, header, udp, kind = 14, 20, 8, 5
	if len(frame) < ethernet+header+udp+kind+1 {
		return to, nil
	}
	ip, payload := frame[ethernet:], frame[ethernet+header+udp:]
	from, _ := netip.AddrFromSlice(ip[12:16])
	target, _ := netip.AddrFromSlice(ip[16:20])
	to = netip.AddrPortFrom(target, binary.BigEndian.Uint16(ip[header+2:]))
	if ip[9] != unix.IPPROTO_UDP || to.Port() != heartbeat.Port || payload[kind] != 1 || from != source {
		return to, nil
	}
	return to, payload
}

// replay makes the client send datagrams nine times a second, until the returned function is
// called.
func (f *fleet) replay(all map[netip.AddrPort][]byte) (stop func()) {
	f.t.Helper()
	c, err := f.client.ListenPacket("udp4", ":0")
	if err != nil {
		f.t.Fatal(err)
	}
	done := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			for to, payload := range all {
				_, _ = c.WriteTo(payload, net.UDPAddrFromAddrPort(to)) // a lost datagram is followed by another
			}
			select {
			case <-done:
				return
			case <-time.After(time.Second / 9):
			}
		}
	})
	stop = sync.OnceFunc(func() { close(done); sending.Wait(); _ = c.Close() })
	f.t.Cleanup(stop)
	return stop
}

package doctor

import (
	"fmt"
	"testing"

	"vipd/cmd/internal/api"
)

func TestFindingsOfSockets(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "sockets", change: func(m *fakeHost) {
			m.frontend("192.168.1.5:30080/tcp", true)
			m.files["/proc/thread-self/net/tcp"] = "  sl  local_address rem_address   st\n" +
				line("0A00600A:0050", "0A", "222") + line("0A00600A:0050", "0A", "111") +
				line("0A00600A:0051", "0A", "222") + line("00000000:0050", "0A", "222") + line("00000000:7580", "0A", "222") + line("0A00600A:0050", "01", "222")
			m.files["/proc/thread-self/net/udp6"] = line("00000000000000000000000000000000:0050", "07", "222")
		}, want: []string{
			"sockets: warning: nginx listens on 10.96.0.10:80/tcp, which service web uses (10.96.0.10:80/tcp)",
			"sockets: warning: nginx listens on 0.0.0.0:30080/tcp, which service web uses (192.168.1.5:30080/tcp)",
		}},
		{name: "sockets at the host's own address", change: func(m *fakeHost) {
			m.frontend("192.168.1.5:80/tcp", false)
			m.Status.Addresses = append(m.Status.Addresses, api.Address{Address: "192.168.1.5", Held: "host"})
			m.files["/proc/thread-self/net/tcp"] = line("00000000:0050", "0A", "222")
		}, want: []string{"sockets: warning: nginx listens on 0.0.0.0:80/tcp, which service web uses (192.168.1.5:80/tcp)"}},
		{name: "sockets, where vipd listens itself", change: func(m *fakeHost) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "userspace", Detail: "bind, because"}
			m.files["/proc/thread-self/net/tcp"] = line("00000000:0050", "0A", "222") + line("0A00600A:0050", "0A", "333")
		}, want: []string{"sockets: problem: nginx listens on 0.0.0.0:80/tcp, which service web uses (10.96.0.10:80/tcp)"}},
	})
}

// line returns a line in the format of /proc/net/tcp.
func line(local, state, inode string) string {
	return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %s 1\n", local, state, inode)
}

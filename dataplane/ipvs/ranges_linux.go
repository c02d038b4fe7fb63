package ipvs

import (
	"fmt"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/portmap"
)

// openMarkers returns the markers of both families. They preserve an earlier process's marks.
// openMarkers returns an error if a trial shows that the kernel does not support marks.
func openMarkers() (all map[inet.Family]marker, err error) {
	all = map[inet.Family]marker{}
	defer func() {
		if err != nil {
			for _, m := range all {
				m.Leave()
			}
			all = nil
		}
	}()
	for _, family := range inet.Families() {
		conn, err := nft.Open()
		if err != nil {
			return all, fmt.Errorf("marking packets to port ranges: %w", err)
		}
		m := portmap.New(conn, family, rangeMarks())
		m.Adopt()
		all[family] = m
		if err := m.Works(); err != nil {
			return all, err
		}
		if err := conn.Listen(); err != nil {
			return all, err
		}
	}
	return all, nil
}

package ipvs

import (
	"testing"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

package profile

// hostEfficiency is the share of a link's raw rate that copies of pinned memory are taken to
// reach, an estimate: packets' headers take part of it, and hosts differ.
const hostEfficiency = 0.8

// Raw rates of links to the host, in bytes per second and direction, after line coding (PCI
// Express Base Specification, 128b/130b; NVIDIA Grace Hopper datasheet).
const (
	pcie3x16  = 15.754 * giga
	pcie4x8   = 15.754 * giga
	pcie4x16  = 31.508 * giga
	pcie5x16  = 63.015 * giga
	nvlinkC2C = 450 * giga
)

// hostLinks are the links of cards to their hosts, by the vendor's datasheets; those that
// are not here have PCIe 4.0 x16.
var hostLinks = map[string]float64{
	"h200": pcie5x16, "h100": pcie5x16, "h100-pcie": pcie5x16, "b200": pcie5x16, "rtx5090": pcie5x16, "rtx5080": pcie5x16,
	"gh200": nvlinkC2C, "rtx4060": pcie4x8, "t4": pcie3x16, "v100-16gb": pcie3x16, "v100-32gb": pcie3x16, "p100": pcie3x16,
}

// HostBandwidth is the rate at which the card copies pinned memory of its host, in bytes
// per second and direction: as calibrate measured it, or an estimate from its link.
func (d *Device) HostBandwidth() (rate float64, measured bool) {
	if d.Host > 0 {
		return d.Host, true
	}
	link := hostLinks[d.Name]
	if link == 0 {
		link = pcie4x16
	}
	return hostEfficiency * link, false
}

"""What tests share: endpoint pairs on a virtual clock, packet factories, fakes."""

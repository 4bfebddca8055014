import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from fastrl.envs.rows import ObsRows
from fastrl.networks.encoders import Decoder, Encoder, RowPooling, image_place

IMAGE = Box(0, 255, (84, 84, 4), np.uint8)
MIXED = Dict(
    {
        "picture": Box(0, 255, (7, 7, 3), np.uint8),
        "number": Discrete(4),
        "box": Box(-9, 9, (2, 2), np.float32),
    }
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rows_of(space, count=3):
    space.seed(0)
    obs_rows = ObsRows(space)
    samples = [space.sample() for _ in range(count)]
    out = np.zeros((count, obs_rows.size), obs_rows.dtype)
    for sample, row in zip(samples, out, strict=True):
        obs_rows.write(sample, row)
    return obs_rows, samples, torch.from_numpy(out)


class TestDecoder:
    def test_parts_come_back_as_they_were(self):
        obs_rows, samples, rows = rows_of(MIXED)
        decoder = Decoder(obs_rows)
        numbers, [picture] = decoder(rows)
        assert picture.shape == (3, 3, 7, 7)
        for i, sample in enumerate(samples):
            expected = torch.from_numpy(sample["picture"]).permute(2, 0, 1) / 255
            torch.testing.assert_close(picture[i], expected)
            own = torch.cat(
                [
                    torch.from_numpy(sample["box"]).flatten(),
                    torch.nn.functional.one_hot(torch.tensor(sample["number"]), 4).float(),
                ]
            )
            assert sorted(numbers[i].tolist()) == sorted(own.tolist())

    @pytest.mark.parametrize("place", range(3))
    def test_one_row_alone(self, place):
        """A row in the middle of an array starts at an odd address."""
        obs_rows, _, rows = rows_of(MIXED)
        decoder = Decoder(obs_rows)
        torch.testing.assert_close(
            decoder.vector(rows[place : place + 1]), decoder.vector(rows)[place : place + 1]
        )

    def test_rows_without_images_are_numbers(self):
        obs_rows, _, rows = rows_of(Tuple([Discrete(3), MultiDiscrete([2, 3])]))
        numbers, images = Decoder(obs_rows)(rows)
        assert torch.equal(numbers, rows)
        assert images == []

    def test_only_numbers_are_whitened(self):
        obs_rows, _, rows = rows_of(MIXED, 50)
        decoder = Decoder(obs_rows, normalize=True)
        before = decoder(rows)[1]
        decoder.update_statistics(rows)
        numbers, images = decoder(rows)
        torch.testing.assert_close(numbers.mean(0), torch.zeros(8), atol=1e-4, rtol=0)
        assert torch.equal(images[0], before[0])
        assert Decoder(ObsRows(IMAGE), normalize=True).norm is None

    @pytest.mark.parametrize(
        ("shape", "channels", "last"),
        [((84, 84), 1, False), ((84, 84, 4), 4, True), ((4, 84, 84), 4, False), ((7, 7, 3), 3, True)],
    )
    def test_finds_channels(self, shape, channels, last):
        [part] = ObsRows(Box(0, 255, shape, np.uint8)).parts
        place = image_place(part)
        assert place.shape[0] == channels
        assert place.channels_last == last

    def test_flat_images_are_numbers_that_can_be_whitened(self):
        obs_rows, _, rows = rows_of(MIXED)
        decoder = Decoder(obs_rows, True, flat=True)
        decoder.update_statistics(rows)
        numbers, images = decoder(rows)
        assert images == [] and numbers.shape == (len(rows), decoder.vector_size)
        assert decoder.vector_size == sum(part.size for part in obs_rows.parts)
        assert numbers.mean(0).abs().max() < 1e-4
        plain = Decoder(obs_rows)
        torch.testing.assert_close(decoder.vector(rows)[:, : plain.vector_size], plain.vector(rows))


class TestEncoder:
    @pytest.mark.parametrize("kind", ["auto", "nature", "impala", "mlp"])
    @pytest.mark.parametrize(
        "space", [IMAGE, MIXED, Box(0, 255, (10, 10), np.uint8), Box(0, 255, (3, 36, 50), np.uint8)], ids=str
    )
    def test_gives_features(self, kind, space):
        obs_rows, _, rows = rows_of(space)
        decoder = Decoder(obs_rows, flat=kind == "mlp")
        encoder = Encoder(
            decoder, kind, (32,), "tanh", layer_norm=True, dropout=0.1, generator=seeded()
        ).eval()
        features = encoder(*decoder(rows))
        assert features.shape == (3, encoder.size) == (3, 32)
        assert features.isfinite().all()
        assert not torch.equal(features[0], features[1])
        # Rows do not depend on each other.
        torch.testing.assert_close(encoder(*decoder(rows[:1])), features[:1])

    def test_nature_is_the_network_of_the_paper(self):
        encoder = Encoder(Decoder(ObsRows(IMAGE)), "nature", (), "relu")
        assert encoder.size == 512
        assert sum(parameter.numel() for parameter in encoder.parameters()) == 1_684_128

    def test_starts_orthogonal_with_zero_biases(self):
        encoder = Encoder(Decoder(ObsRows(MIXED)), "nature", (16,), "relu", generator=seeded())
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any()
                continue
            if parameter.ndim == 1:
                # Of layer normalisation.
                assert (parameter == 1).all()
                continue
            matrix = parameter.detach().flatten(1)
            if matrix.shape[0] > matrix.shape[1]:
                matrix = matrix.T
            torch.testing.assert_close(matrix @ matrix.T, 2 * torch.eye(len(matrix)), atol=1e-5, rtol=0)

    def test_weights_come_from_the_generator_alone(self):
        before = torch.random.get_rng_state()
        decoder = Decoder(ObsRows(MIXED))
        first, again, other = (
            torch.nn.utils.parameters_to_vector(
                Encoder(decoder, "impala", (8,), "relu", generator=seeded(seed)).parameters()
            )
            for seed in (1, 1, 2)
        )
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


TABLE = Box(-1, 1, (5, 3), np.float32)
TABLES = Dict(
    {
        "goal": Box(-1, 1, (2,), np.float32),
        "lights": Box(-1, 1, (1, 4), np.float32),
        "picture": Box(0, 255, (7, 7, 3), np.uint8),
        "vehicles": TABLE,
    }
)


def pooled_slowly(pooling, numbers):
    """Features that `RowPooling` gives for one observation of `TABLES`, row by row."""
    goal, lights, vehicles = numbers[:2], numbers[2:6], numbers[6:].view(5, 3)
    others = [pooling.tables[0](torch.cat([row, vehicles[0]])) for row in vehicles[1:] if row.any()]
    highest, mean = torch.zeros(64), torch.zeros(64)
    for features in others:
        highest = torch.maximum(highest, features)
        mean += features / len(others)
    return torch.cat([goal, lights, vehicles[0], highest, mean])


class TestRowPooling:
    def pooling(self, *shapes):
        return RowPooling(shapes, layer_norm=False, dropout=0.0, generator=seeded())

    @pytest.mark.parametrize("there", [0, 1, 3, 4])
    def test_is_what_rows_give_one_by_one(self, there):
        pooling = self.pooling((2,), (1, 4), (5, 3))
        numbers = torch.randn((8, 21), generator=seeded())
        numbers[:, 21 - 3 * (4 - there) :] = 0
        expected = torch.stack([pooled_slowly(pooling, each) for each in numbers])
        assert expected.shape == (8, pooling.size)
        torch.testing.assert_close(pooling(numbers), expected)

    def test_order_and_empty_rows_do_not_matter(self):
        table = torch.randn((2, 5, 3), generator=seeded())
        features = self.pooling((5, 3))(table.flatten(1))
        torch.testing.assert_close(self.pooling((5, 3))(table[:, [0, 3, 1, 4, 2]].flatten(1)), features)
        longer = torch.cat([table[:, :2], torch.zeros(2, 3, 3), table[:, 2:]], 1)
        torch.testing.assert_close(self.pooling((8, 3))(longer.flatten(1)), features)
        other = self.pooling((5, 3))(table[:, [1, 0, 2, 3, 4]].flatten(1))
        assert (other - features).abs().max() > 0.1

    @pytest.mark.parametrize("space", [TABLE, TABLES], ids=["table", "beside others"])
    def test_encoders_have_it(self, space):
        obs_rows, _, rows = rows_of(space)
        decoder = Decoder(obs_rows)
        encoder = Encoder(decoder, "rows", (32,), "tanh", generator=seeded())
        assert encoder(*decoder(rows)).shape == (3, 32)
        [pooling] = [module for module in encoder.modules() if isinstance(module, RowPooling)]
        assert pooling.size == (131 if space is TABLE else 2 + 4 + 131)

    def test_refuses_observations_without_tables_or_whitened(self):
        with pytest.raises(
            ValueError, match=r"the observations have \(2, 2, 2\), \(4,\): set encoder to auto"
        ):
            self.pooling((2, 2, 2), (4,))
        with pytest.raises(ValueError, match="images alone"):
            Encoder(Decoder(ObsRows(IMAGE)), "rows", (), "relu")
        with pytest.raises(ValueError, match="set normalize_obs to false"):
            Encoder(Decoder(ObsRows(TABLE), normalize=True), "rows", (), "relu")


def test_images_are_read_where_they_lie():
    """Of channels last a row is the image's memory, without a copy."""
    obs_rows, _, rows = rows_of(IMAGE)
    [image] = Decoder(obs_rows).pixels(rows)
    assert image.data_ptr() == rows.data_ptr()
    assert image.dtype == torch.uint8
